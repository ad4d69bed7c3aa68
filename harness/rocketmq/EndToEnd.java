import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Sends messages at a steady pace to a group that waits for them, and prints "= " and how long each took
 * from the call that sent it to the listener, in microseconds.
 *
 * Arguments: name server, topic, messages a second, seconds.
 */
public class EndToEnd {
    public static void main(String[] args) throws Exception {
        String topic = args[1];
        long gap = (long) (1e9 / Double.parseDouble(args[2]));
        double seconds = Double.parseDouble(args[3]);
        ConcurrentLinkedQueue<Long> took = new ConcurrentLinkedQueue<>();
        AtomicLong first = new AtomicLong(Long.MAX_VALUE);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("end-to-end");
        consumer.setNamesrvAddr(args[0]);
        consumer.subscribe(topic, "*");
        consumer.setMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                long sent = ByteBuffer.wrap(message.getBody()).getLong();
                first.compareAndSet(Long.MAX_VALUE, now);
                if (sent >= 0) {
                    took.add(now - sent);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        DefaultMQProducer producer = new DefaultMQProducer("end-to-end");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        consumer.start();
        for (int tries = 0; first.get() == Long.MAX_VALUE; tries++) {
            if (tries == 240) {
                throw new IllegalStateException("the group gets nothing");
            }
            try {
                producer.send(new Message(topic, body(-1)));
            } catch (Exception e) {
                // The topic comes with the first message.
            }
            Thread.sleep(500);
        }
        SendCallback none = new SendCallback() {
            public void onSuccess(SendResult result) {}

            public void onException(Throwable e) {
                e.printStackTrace();
            }
        };
        long begin = System.nanoTime();
        long count = (long) (seconds * 1e9 / gap);
        for (long i = 0; i < count; i++) {
            long due = begin + i * gap;
            for (long left; (left = due - System.nanoTime()) > 0; ) {
                LockSupport.parkNanos(left);
            }
            producer.send(new Message(topic, body(due)), none);
        }
        for (int waits = 0; took.size() < count && waits < 100; waits++) {
            Thread.sleep(100);
        }
        long[] sorted = took.stream().mapToLong(each -> each / 1000).sorted().toArray();
        System.out.println("= " + Arrays.toString(sorted).replaceAll("[\\[\\],]", ""));
        System.out.flush();
        System.exit(0);
    }

    private static byte[] body(long sent) {
        return ByteBuffer.allocate(1024).putLong(sent).array();
    }
}
