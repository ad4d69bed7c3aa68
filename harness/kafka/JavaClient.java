import java.io.FileReader;
import java.io.FileWriter;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * SERVERS COMMAND ARGUMENT...; the producer is idempotent, as it is unless one says otherwise. The system property
 * "client" names a file with more properties.
 *
 * create TOPIC PARTITIONS
 * send TOPIC COUNT COMPRESSION: records "kN" and "vN"; prints PARTITION OFFSET KEY
 * read TOPIC GROUP COUNT: prints PARTITION OFFSET KEY VALUE HEADERS, and commits
 * describe GROUP: prints STATE and PARTITION OFFSET of what is committed
 * produce TOPIC NAME PARTITIONS: "NAME:N" to each partition in turn, until stdin ends; then prints how many
 * consume TOPIC GROUP FILE: until it is killed; FILE gets PARTITION OFFSET VALUE, which is committed afterwards
 */
public class JavaClient {
    public static void main(String[] args) throws Exception {
        Properties given = new Properties();
        String file = System.getProperty("client");
        if (file != null) {
            try (var reader = new FileReader(file)) {
                given.load(reader);
            }
        }
        given.put("bootstrap.servers", args[0]);
        switch (args[1]) {
            case "create" -> create(given, args[2], Integer.parseInt(args[3]));
            case "send" -> send(given, args[2], Integer.parseInt(args[3]), args[4]);
            case "read" -> read(given, args[2], args[3], Integer.parseInt(args[4]));
            case "describe" -> describe(given, args[2]);
            case "produce" -> produce(given, args[2], args[3], Integer.parseInt(args[4]));
            case "consume" -> consume(given, args[2], args[3], args[4]);
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

    static void produce(Properties given, String topic, String name, int partitions) throws Exception {
        given.put("delivery.timeout.ms", "240000");
        var told = new AtomicBoolean();
        var waiting = new Thread(() -> {
            try {
                System.in.readAllBytes();
            } catch (java.io.IOException ended) {
                // as well
            }
            told.set(true);
        });
        waiting.setDaemon(true);
        waiting.start();
        int number = 0;
        try (var producer = new KafkaProducer<>(given, new StringSerializer(), new StringSerializer())) {
            while (!told.get()) {
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                for (int n = 0; n < 50; n++, number++) {
                    sent.add(producer.send(new ProducerRecord<>(topic, number % partitions, null, name + ":" + number)));
                }
                for (var each : sent) {
                    each.get();
                }
            }
        }
        System.out.println(number);
    }

    static void consume(Properties given, String topic, String group, String file) throws Exception {
        given.put("group.id", group);
        given.put("auto.offset.reset", "earliest");
        given.put("enable.auto.commit", "false");
        given.put("session.timeout.ms", "6000");
        given.put("heartbeat.interval.ms", "1000");
        given.put("default.api.timeout.ms", "240000");
        given.put("max.poll.records", "100");
        try (var consumer = new KafkaConsumer<>(given, new StringDeserializer(), new StringDeserializer());
                var out = new FileWriter(file, true)) {
            consumer.subscribe(List.of(topic));
            while (true) {
                var found = consumer.poll(Duration.ofMillis(200));
                for (ConsumerRecord<String, String> one : found) {
                    out.write(one.partition() + " " + one.offset() + " " + one.value() + "\n");
                }
                out.flush();
                if (!found.isEmpty()) {
                    try {
                        consumer.commitSync();
                    } catch (KafkaException passing) {
                        // a rebalance, or a new leader: read once more
                    }
                }
            }
        }
    }
}
