import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.ArrayList;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * SERVERS COMMAND ARGUMENT...; the producer is idempotent, as it is unless one says otherwise.
 *
 * create TOPIC PARTITIONS
 * send TOPIC COUNT COMPRESSION: records "kN" and "vN"; prints PARTITION OFFSET KEY
 * read TOPIC GROUP COUNT: prints PARTITION OFFSET KEY VALUE HEADERS, and commits
 * describe GROUP: prints STATE and PARTITION OFFSET of what is committed
 */
public class JavaClient {
    public static void main(String[] args) throws Exception {
        Properties given = new Properties();
        given.put("bootstrap.servers", args[0]);
        switch (args[1]) {
            case "create" -> create(given, args[2], Integer.parseInt(args[3]));
            case "send" -> send(given, args[2], Integer.parseInt(args[3]), args[4]);
            case "read" -> read(given, args[2], args[3], Integer.parseInt(args[4]));
            case "describe" -> describe(given, args[2]);
            default -> throw new IllegalArgumentException(args[1]);
        }
    }

    static void create(Properties given, String topic, int partitions) throws Exception {
        try (Admin admin = Admin.create(given)) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) -1))).all().get();
            System.out.println(admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
        }
    }

    static void send(Properties given, String topic, int count, String compression) throws Exception {
        given.put("compression.type", compression);
        try (var producer = new KafkaProducer<>(given, new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int n = 0; n < count; n++) {
                var made = new ProducerRecord<>(topic, "k" + n, "v" + n);
                made.headers().add("h", ("" + n).getBytes());
                sent.add(producer.send(made));
            }
            for (int n = 0; n < count; n++) {
                RecordMetadata at = sent.get(n).get();
                System.out.println(at.partition() + " " + at.offset() + " k" + n);
            }
        }
    }

    static void read(Properties given, String topic, String group, int count) {
        given.put("group.id", group);
        given.put("auto.offset.reset", "earliest");
        given.put("enable.auto.commit", "false");
        try (var consumer = new KafkaConsumer<>(given, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int seen = 0; seen < count; ) {
                for (ConsumerRecord<String, String> one : consumer.poll(Duration.ofSeconds(1))) {
                    seen++;
                    var header = one.headers().lastHeader("h");
                    System.out.println(
                            one.partition() + " " + one.offset() + " " + one.key() + " " + one.value() + " "
                                    + (header == null ? "-" : new String(header.value())));
                }
            }
            consumer.commitSync();
        }
    }

    static void describe(Properties given, String group) throws Exception {
        try (Admin admin = Admin.create(given)) {
            System.out.println(admin.describeConsumerGroups(List.of(group)).all().get().get(group).state());
            admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach(
                    (partition, at) -> System.out.println(partition.partition() + " " + at.offset()));
        }
    }
}
