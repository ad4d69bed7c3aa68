import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends to a Java broker for some seconds and prints "= messages milliseconds".
 *
 * Arguments: name server, topic, senders, messages of a batch (1: single messages), bytes of a body, seconds.
 */
public class BrokerLoad {
    public static void main(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(20_000);
        producer.setCompressMsgBodyOverHowmuch(1 << 30);
        producer.start();
        String topic = args[1];
        int senders = Integer.parseInt(args[2]);
        int batch = Integer.parseInt(args[3]);
        byte[] body = new byte[Integer.parseInt(args[4])];
        long duration = (long) (Double.parseDouble(args[5]) * 1000);
        for (int tries = 0; ; tries++) {
            try {
                producer.send(new Message(topic, body));
                break;
            } catch (Exception e) {
                if (tries == 60) {
                    throw e;
                }
                Thread.sleep(500);
            }
        }
        AtomicBoolean ended = new AtomicBoolean();
        AtomicLong sent = new AtomicLong();
        CountDownLatch done = new CountDownLatch(senders);
        long begin = System.currentTimeMillis();
        for (int i = 0; i < senders; i++) {
            new Thread(() -> {
                while (!ended.get()) {
                    try {
                        SendResult result;
                        if (batch == 1) {
                            result = producer.send(new Message(topic, body));
                        } else {
                            List<Message> messages = new ArrayList<>(batch);
                            for (int k = 0; k < batch; k++) {
                                messages.add(new Message(topic, body));
                            }
                            result = producer.send(messages);
                        }
                        if (result.getSendStatus() == SendStatus.SEND_OK) {
                            sent.addAndGet(batch);
                        }
                    } catch (Exception e) {
                        // A broker under load refuses now and then; the sender goes on.
                        e.printStackTrace();
                    }
                }
                done.countDown();
            }).start();
        }
        Thread.sleep(duration);
        ended.set(true);
        done.await();
        System.out.println("= " + sent.get() + " " + (System.currentTimeMillis() - begin));
        System.out.flush();
        System.exit(0);
    }
}
