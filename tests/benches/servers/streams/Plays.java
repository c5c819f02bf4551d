// What the speed layer does with plays, as a job of Kafka Streams: counts of ten views by row, exactly once.
//
// java -cp JARS Plays.java BROKERS TOPIC EVENTS FOLDER rocksdb|memory
//
// It counts until EVENTS events are committed, then says how long that took from when it began to connect, and by view
// how many rows there are and what they add up to. It leaves out what has no equal there: events that come twice, and
// the epochs by which an answer joins those of a batch run.

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueBytesStoreSupplier;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

public class Plays {
    static final String[] VIEWS = {
        "plays_detail", "plays_owner_quarter", "plays_owner_day_country_app", "plays_owner_day_referrer",
        "plays_owner_day_track", "plays_track_quarter", "plays_track_day_country_app", "plays_track_day_listener",
        "plays_track_day_referrer", "plays_kind_quarter",
    };
    static final String STORE = "counts";
    static final long QUARTER_SECONDS = 900;
    static final long DAY_SECONDS = 86_400;

    static final AtomicLong counted = new AtomicLong();
    static final AtomicLongArray rows = new AtomicLongArray(VIEWS.length);
    static final AtomicLongArray sums = new AtomicLongArray(VIEWS.length);

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        long events = Long.parseLong(arguments[2]);
        boolean inMemory = arguments[4].equals("memory");
        CountDownLatch done = new CountDownLatch(1);

        KeyValueBytesStoreSupplier supplier =
            inMemory ? Stores.inMemoryKeyValueStore(STORE) : Stores.persistentKeyValueStore(STORE);
        Topology topology = new Topology();
        topology.addSource("plays", Serdes.ByteArray().deserializer(), Serdes.ByteArray().deserializer(), topic);
        topology.addProcessor("count", () -> new Count(events, done), "plays");
        topology.addStateStore(
            Stores.keyValueStoreBuilder(supplier, Serdes.Bytes(), Serdes.Long()).withCachingEnabled(), "count");

        Properties options = new Properties();
        String application = "bench-" + topic + "-" + System.nanoTime();
        options.put(StreamsConfig.APPLICATION_ID_CONFIG, application);
        options.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, arguments[0]);
        options.put(StreamsConfig.STATE_DIR_CONFIG, arguments[3]);
        options.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        options.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
        options.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, 1_000);
        options.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, 1);
        options.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 512L << 20);
        options.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
        options.put(StreamsConfig.consumerPrefix(ConsumerConfig.MAX_POLL_RECORDS_CONFIG), 5_000);

        long begun = System.nanoTime();
        KafkaStreams streams = new KafkaStreams(topology, options);
        streams.setUncaughtExceptionHandler(error -> {
            error.printStackTrace();
            System.exit(1);
            return null;
        });
        streams.start();
        done.await();
        // Commits what was counted last.
        streams.close();
        double seconds = (System.nanoTime() - begun) / 1e9;

        // The topics that it made for itself.
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            List<String> own = admin.listTopics().names().get().stream()
                .filter(name -> name.startsWith(application)).toList();
            admin.deleteTopics(own).all().get();
        }

        StringBuilder views = new StringBuilder();
        for (int view = 0; view < VIEWS.length; view++) {
            views.append(view == 0 ? "" : ", ");
            views.append(String.format(
                "\"%s\": {\"rows\": %d, \"sum\": %d}", VIEWS[view], rows.get(view), sums.get(view)));
        }
        System.out.printf("{\"events\": %d, \"seconds\": %.3f, \"views\": {%s}}%n", counted.get(), seconds, views);
    }

    static final class Count implements Processor<byte[], byte[], Void, Void> {
        final long events;
        final CountDownLatch done;
        final JsonFactory json = new JsonFactory();
        final ByteBuffer key = ByteBuffer.allocate(4_096);
        KeyValueStore<Bytes, Long> store;

        Count(long events, CountDownLatch done) {
            this.events = events;
            this.done = done;
        }

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            store = context.getStateStore(STORE);
        }

        @Override
        public void process(Record<byte[], byte[]> record) {
            Play play = new Play();
            try (JsonParser parser = json.createParser(record.value())) {
                play.read(parser);
            } catch (java.io.IOException error) {
                throw new IllegalStateException(error);
            }
            long second = Instant.parse(play.at).getEpochSecond();
            long quarter = Math.floorDiv(second, QUARTER_SECONDS);
            long day = Math.floorDiv(second, DAY_SECONDS);
            long owner = play.owner;
            long track = play.track;

            begin(0, owner, quarter).number(track).text(play.kind).text(play.country).text(play.referrer)
                .number(play.app).number(play.listener).add(0, play.amount);
            begin(1, owner, quarter).text(play.kind).add(1, play.amount);
            begin(2, owner, day).text(play.country).number(play.app).text(play.kind).add(2, play.amount);
            begin(3, owner, day).text(play.referrer).text(play.kind).add(3, play.amount);
            begin(4, owner, day).number(track).text(play.kind).add(4, play.amount);
            begin(5, track, quarter).number(owner).text(play.kind).add(5, play.amount);
            begin(6, track, day).number(owner).text(play.country).number(play.app).text(play.kind).add(6, play.amount);
            begin(7, track, day).number(owner).number(play.listener).text(play.kind).add(7, play.amount);
            begin(8, track, day).number(owner).text(play.referrer).text(play.kind).add(8, play.amount);
            begin(9, 0, quarter).text(play.kind).add(9, play.amount);

            if (counted.incrementAndGet() == events) {
                done.countDown();
            }
        }

        Count begin(int view, long group, long bucket) {
            key.clear();
            key.put((byte) view).putLong(group).putLong(bucket);
            return this;
        }

        Count number(Long number) {
            if (number == null) {
                key.put((byte) 0);
            } else {
                key.put((byte) 1).putLong(number);
            }
            return this;
        }

        Count text(String text) {
            if (text == null) {
                key.put((byte) 0);
            } else {
                byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
                key.put((byte) 1).putShort((short) bytes.length).put(bytes);
            }
            return this;
        }

        void add(int view, long amount) {
            byte[] bytes = new byte[key.position()];
            key.flip().get(bytes);
            Bytes row = Bytes.wrap(bytes);
            Long before = store.get(row);
            if (before == null) {
                rows.incrementAndGet(view);
            }
            sums.addAndGet(view, amount);
            store.put(row, before == null ? amount : before + amount);
        }
    }

    static final class Play {
        long owner;
        long track;
        Long listener;
        Long app;
        String country;
        String referrer;
        String kind;
        String at;
        long amount = 1;

        void read(JsonParser parser) throws java.io.IOException {
            parser.nextToken();
            while (parser.nextToken() == JsonToken.FIELD_NAME) {
                String name = parser.currentName();
                JsonToken value = parser.nextToken();
                if (value == JsonToken.VALUE_NULL) {
                    continue;
                }
                switch (name) {
                    case "owner_id" -> owner = parser.getLongValue();
                    case "track_id" -> track = parser.getLongValue();
                    case "listener_id" -> listener = parser.getLongValue();
                    case "app_id" -> app = parser.getLongValue();
                    case "country" -> country = parser.getText();
                    case "referrer" -> referrer = parser.getText();
                    case "kind" -> kind = parser.getText();
                    case "at" -> at = parser.getText();
                    case "amount" -> amount = parser.getLongValue();
                    default -> { }
                }
            }
        }
    }
}
