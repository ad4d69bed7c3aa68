import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * One DefaultMessageStore, told on standard input what to do, a line each; it answers with lines and a last
 * one that is "ok".
 *
 * Arguments: directory, commit log file bytes, consume queue file bytes, hash slots, index entries, HA port,
 * SYNC_FLUSH or ASYNC_FLUSH; of a slave also where its master lets slaves in.
 */
public class StoreTool {
    private static DefaultMessageStore store;

    /** Marked, since RocketMQ's logging writes to standard output, too. */
    private static void say(String text) {
        System.out.println("= " + text);
        System.out.flush();
    }

    public static void main(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMaxHashSlotNum(Integer.parseInt(args[3]));
        config.setMaxIndexNum(Integer.parseInt(args[4]));
        config.setHaListenPort(Integer.parseInt(args[5]));
        config.setFlushDiskType(FlushDiskType.valueOf(args[6]));
        config.setCheckCRCOnRecover(true);
        if (args.length > 7) {
            config.setBrokerRole(BrokerRole.SLAVE);
        }
        config.setDiskMaxUsedSpaceRatio(95);
        String dledgerPort = System.getProperty("dledger.port");
        if (dledgerPort != null) {
            config.setEnableDLegerCommitLog(true);
            config.setdLegerGroup("tool");
            config.setdLegerSelfId("n0");
            config.setdLegerPeers("n0-localhost:" + dledgerPort);
        }
        BrokerConfig broker = new BrokerConfig();
        store = new DefaultMessageStore(config, new BrokerStatsManager(broker),
            (topic, queueId, offset, tagsCode, time, filter, properties) -> { }, broker, new ConcurrentHashMap<>());
        boolean loaded = store.load();
        store.start();
        if (args.length > 7) {
            store.getHaService().updateHaMasterAddress(args[7]);
        }
        say(loaded ? "loaded" : "not loaded");
        say("ok");
        java.util.Scanner in = new java.util.Scanner(System.in);
        while (in.hasNextLine()) {
            String[] words = in.nextLine().trim().split(" ");
            switch (words[0]) {
                case "put": put(words[1], Integer.parseInt(words[2]), Integer.parseInt(words[3]), Integer.parseInt(words[4])); break;
                case "get": get(words[1], Integer.parseInt(words[2])); break;
                case "query": query(words[1], words[2]); break;
                case "offsets": say(store.getMinPhyOffset() + " " + store.getMaxPhyOffset()); break;
                case "settle": settle(); break;
                case "halt": Runtime.getRuntime().halt(9); break;
                case "close": settle(); store.shutdown(); say("ok"); System.exit(0); break;
                default: throw new IllegalArgumentException(words[0]);
            }
            say("ok");
            System.out.flush();
        }
    }

    /** Messages whose content follows from their number alone, but for the times. */
    private static void put(String topic, int queue, int first, int count) throws Exception {
        for (int i = first; i < first + count; i++) {
            MessageExtBrokerInner message = new MessageExtBrokerInner();
            message.setTopic(topic);
            message.setQueueId(queue);
            message.setBody(("body " + i + " of " + topic + " " + "x".repeat(i % 200)).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("number", Integer.toString(i));
            message.setTags("tag" + i % 3);
            message.setKeys(java.util.Arrays.asList("key" + i, "tenth" + i / 10));
            org.apache.rocketmq.common.message.MessageAccessor.putProperty(
                message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, String.format("%032X", i));
            message.setBornTimestamp(1_700_000_000_000L + i);
            message.setBornHost(new InetSocketAddress("127.0.0.1", 54321));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
            message.setSysFlag(0);
            message.setFlag(i);
            message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
            message.setTagsCode(org.apache.rocketmq.common.message.MessageExtBrokerInner.tagsString2tagsCode(
                org.apache.rocketmq.common.TopicFilterType.SINGLE_TAG, message.getTags()));
            PutMessageResult result = store.putMessage(message);
            if (!result.isOk()) {
                say("refused " + result.getPutMessageStatus());
            }
        }
    }

    private static void settle() throws Exception {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(5);
        }
        store.flush();
    }

    private static void get(String topic, int queue) throws Exception {
        settle();
        long offset = store.getMinOffsetInQueue(topic, queue);
        long max = store.getMaxOffsetInQueue(topic, queue);
        while (offset < max) {
            GetMessageResult result = store.getMessage("tool", topic, queue, offset, 256, null);
            List<ByteBuffer> buffers = result.getMessageBufferList();
            if (buffers.isEmpty()) {
                say("missing " + offset + " " + result.getStatus());
                break;
            }
            for (ByteBuffer buffer : buffers) {
                MessageExt message = MessageDecoder.decode(buffer, true, false, false, false, true);
                if (message == null) {
                    say("bad " + offset);
                } else {
                    say("message " + message.getQueueOffset() + " " + message.getCommitLogOffset() + " "
                        + UtilAll.crc32(message.getBody()) + " " + message.getTags() + " " + message.getKeys());
                }
            }
            offset = result.getNextBeginOffset();
            result.release();
        }
    }

    private static void query(String topic, String key) throws Exception {
        QueryMessageResult result = store.queryMessage(topic, key, 1000, 0, Long.MAX_VALUE);
        say("found " + result.getMessageBufferList().size());
        result.release();
    }
}
