package bendybus;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import bendybus.Broker.Provider;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.Destination;
import jakarta.jms.InvalidDestinationException;
import jakarta.jms.InvalidDestinationRuntimeException;
import jakarta.jms.JMSConsumer;
import jakarta.jms.JMSContext;
import jakarta.jms.JMSException;
import jakarta.jms.JMSRuntimeException;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import jakarta.jms.TextMessage;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import java.util.stream.Stream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.MethodSource;

/** JMS 2.0 in Premium, by Apache Qpid JMS and by Microsoft's library, on two partitions and on one. */
class Jms20Test {
    private static final long PATIENCE_MS = Broker.PATIENCE.toMillis();

    record Stand(Provider provider, Broker broker, String partitions) {
        boolean partitioned() {
            return broker == Broker.PREMIUM;
        }

        @Override
        public String toString() {
            return provider + ", " + partitions;
        }
    }

    static Stream<Stand> stands() {
        return Stream.of(Provider.values()).flatMap(provider -> Stream.of(
            new Stand(provider, Broker.PREMIUM, "2 partitions"),
            new Stand(provider, Broker.PREMIUM_UNPARTITIONED, "1 partition")));
    }

    private final List<AutoCloseable> open = new ArrayList<>();

    private JMSContext connect(Stand stand, String clientId, int mode) {
        JMSContext context = stand.provider.factory(stand.broker, clientId).createContext(mode);
        open.add(context);
        return context;
    }

    private JMSContext connect(Stand stand, String clientId) {
        return connect(stand, clientId, JMSContext.AUTO_ACKNOWLEDGE);
    }

    private JMSContext connect(Stand stand) {
        return connect(stand, null);
    }

    @AfterEach
    void disconnect() throws Exception {
        for (AutoCloseable each : open) {
            each.close();
        }
    }

    private static String newQueue(Stand stand) {
        String name = Broker.newName("jms-q");
        stand.broker.administration().createQueue(name, new CreateQueueOptions().setPartitioningEnabled(stand.partitioned()));
        return name;
    }

    private static String newTopic(Stand stand) {
        String name = Broker.newName("jms-t");
        stand.broker.administration().createTopic(name, new CreateTopicOptions().setPartitioningEnabled(stand.partitioned()));
        return name;
    }

    private static List<String> subscriptions(Stand stand, String topic) {
        return stand.broker.administration().listSubscriptions(topic).stream()
            .map(each -> each.getSubscriptionName()).sorted().toList();
    }

    private static void send(JMSContext context, Destination destination, String... texts) {
        for (String text : texts) {
            context.createProducer().setProperty("text", text).send(destination, text);
        }
    }

    private static List<String> receive(JMSConsumer consumer, int count) {
        List<String> found = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            found.add(consumer.receiveBody(String.class, PATIENCE_MS));
        }
        return found.stream().sorted(java.util.Comparator.nullsFirst(java.util.Comparator.naturalOrder())).toList();
    }

    // -- topics

    @ParameterizedTest
    @MethodSource("stands")
    void eachConsumerOfATopicGetsACopy(Stand stand) {
        JMSContext context = connect(stand);
        String name = newTopic(stand);
        Topic topic = context.createTopic(name);
        JMSConsumer one = context.createConsumer(topic);
        JMSConsumer two = context.createConsumer(topic, "text = 'b'");
        send(context, topic, "a", "b", "c");
        assertEquals(List.of("a", "b", "c"), receive(one, 3));
        assertEquals(List.of("b"), receive(two, 1));
        assertNull(two.receiveNoWait());
        one.close();
        two.close();
        assertEquals(List.of(), subscriptions(stand, name));
    }

    @ParameterizedTest
    @MethodSource("stands")
    void aDurableSubscriptionCollectsWhileItsClientIsAway(Stand stand) {
        String name = newTopic(stand);
        String clientId = Broker.newName("client");
        try (JMSContext context = connect(stand, clientId)) {
            Topic topic = context.createTopic(name);
            JMSConsumer consumer = context.createDurableConsumer(topic, "audit", "text <> 'skipped'", false);
            send(context, topic, "first");
            assertEquals(List.of("first"), receive(consumer, 1));
        }
        JMSContext sender = connect(stand);
        send(sender, sender.createTopic(name), "second", "skipped", "third");
        assertEquals(List.of("audit$" + clientId + "$D"), subscriptions(stand, name));
        JMSContext context = connect(stand, clientId);
        Topic topic = context.createTopic(name);
        JMSConsumer consumer = context.createDurableConsumer(topic, "audit", "text <> 'skipped'", false);
        assertEquals(List.of("second", "third"), receive(consumer, 2));
        assertNull(consumer.receiveNoWait());
        consumer.close();
        send(context, topic, "lost");
        context.unsubscribe("audit");
        assertEquals(List.of(), subscriptions(stand, name));
        consumer = context.createDurableConsumer(topic, "audit");
        assertNull(consumer.receiveNoWait());
        consumer.close();
        context.unsubscribe("audit");
        assertThrows(InvalidDestinationRuntimeException.class, () -> context.unsubscribe("audit"));
    }

    @ParameterizedTest
    @MethodSource("stands")
    void anUnsharedSubscriptionHasOneConsumer(Stand stand) {
        String clientId = Broker.newName("client");
        JMSContext context = connect(stand, clientId);
        Topic topic = context.createTopic(newTopic(stand));
        JMSConsumer consumer = context.createDurableConsumer(topic, "alone");
        JMSContext other = connect(stand, clientId);
        var refusal = assertThrows(JMSRuntimeException.class, () -> other.createDurableConsumer(topic, "alone"));
        assertTrue(refusal.getMessage().contains("active consumer"), refusal.getMessage());
        assertThrows(JMSRuntimeException.class, () -> other.unsubscribe("alone"));
        consumer.close();
        other.createDurableConsumer(topic, "alone").close();
        other.unsubscribe("alone");
    }

    @ParameterizedTest
    @MethodSource("stands")
    void consumersShareADurableSubscription(Stand stand) {
        String name = newTopic(stand);
        String subscription = Broker.newName("shared");
        JMSContext one = connect(stand);
        JMSContext two = connect(stand);
        Topic topic = one.createTopic(name);
        JMSConsumer first = one.createSharedDurableConsumer(topic, subscription);
        JMSConsumer second = two.createSharedDurableConsumer(topic, subscription);
        assertEquals(List.of(subscription + "$$D"), subscriptions(stand, name));
        String[] sent = IntStream.range(0, 20).mapToObj(number -> "m" + number).toArray(String[]::new);
        send(one, topic, sent);
        List<String> found = new ArrayList<>();
        long end = System.nanoTime() + Broker.PATIENCE.toNanos();
        while (found.size() < sent.length && System.nanoTime() < end) {
            for (JMSConsumer consumer : List.of(first, second)) {
                String text = consumer.receiveBody(String.class, 50);
                if (text != null) {
                    found.add(text);
                }
            }
        }
        assertEquals(Stream.of(sent).sorted().toList(), found.stream().sorted().toList());
        first.close();
        second.close();
        send(one, topic, "kept");
        assertEquals(List.of("kept"), receive(two.createSharedDurableConsumer(topic, subscription), 1));
        two.close();
        one.unsubscribe(subscription);
        assertEquals(List.of(), subscriptions(stand, name));
    }

    @ParameterizedTest
    @MethodSource("stands")
    void aSharedSubscriptionEndsWithItsLastConsumer(Stand stand) {
        String name = newTopic(stand);
        JMSContext one = connect(stand);
        JMSContext two = connect(stand);
        Topic topic = one.createTopic(name);
        JMSConsumer first = one.createSharedConsumer(topic, "brief");
        JMSConsumer second = two.createSharedConsumer(topic, "brief");
        assertEquals(List.of("brief$$ND"), subscriptions(stand, name));
        first.close();
        send(one, topic, "m");
        assertEquals(List.of("m"), receive(second, 1));
        second.close();
        assertEquals(List.of(), subscriptions(stand, name));
    }

    // -- temporary destinations

    @ParameterizedTest
    @MethodSource("stands")
    void aRequestIsAnsweredThroughATemporaryQueue(Stand stand) throws JMSException {
        JMSContext asking = connect(stand);
        JMSContext answering = connect(stand);
        Queue requests = asking.createQueue(newQueue(stand));
        Queue replies = asking.createTemporaryQueue();
        asking.createProducer().setJMSReplyTo(replies).setJMSCorrelationID("c-1").send(requests, "ping");
        Message request = answering.createConsumer(requests).receive(PATIENCE_MS);
        answering.createProducer().setJMSCorrelationID(request.getJMSCorrelationID())
            .send(request.getJMSReplyTo(), "pong");
        TextMessage reply = (TextMessage) asking.createConsumer(replies).receive(PATIENCE_MS);
        assertEquals("pong", reply.getText());
        assertEquals("c-1", reply.getJMSCorrelationID());
        Destination there = request.getJMSReplyTo();
        asking.close();
        JMSContext later = connect(stand);
        assertThrows(InvalidDestinationRuntimeException.class, () -> later.createProducer().send(there, "late"));
    }

    @ParameterizedTest
    @MethodSource("stands")
    void aTemporaryQueueIsDeletedOnRequest(Stand stand) throws JMSException {
        try (Connection connection = stand.provider.factory(stand.broker, null).createConnection()) {
            connection.start();
            Session session = connection.createSession();
            var queue = session.createTemporaryQueue();
            String name = queue.getQueueName();
            assertTrue(stand.broker.administration().getQueueExists(name));
            MessageConsumer consumer = session.createConsumer(queue);
            assertThrows(JMSException.class, queue::delete);
            consumer.close();
            queue.delete();
            assertFalse(stand.broker.administration().getQueueExists(name));
        }
    }

    @ParameterizedTest
    @MethodSource("stands")
    void consumersOfATemporaryTopicGetCopies(Stand stand) throws JMSException {
        JMSContext context = connect(stand);
        Topic topic = context.createTemporaryTopic();
        JMSConsumer one = context.createConsumer(topic);
        JMSConsumer two = context.createConsumer(topic);
        JMSContext other = connect(stand);
        send(other, topic, "a", "b");
        assertEquals(List.of("a", "b"), receive(one, 2));
        assertEquals(List.of("a", "b"), receive(two, 2));
        assertTrue(stand.broker.administration().getTopicExists(topic.getTopicName()));
    }

    // -- sending

    @ParameterizedTest
    @MethodSource("stands")
    void aDelayedMessageComesWhenItIsDue(Stand stand) throws JMSException {
        JMSContext context = connect(stand);
        for (Destination destination : List.of(context.createQueue(newQueue(stand)), context.createTopic(newTopic(stand)))) {
            JMSConsumer consumer = context.createConsumer(destination);
            long sent = System.currentTimeMillis();
            context.createProducer().setDeliveryDelay(1000).send(destination, "later");
            context.createProducer().send(destination, "now");
            assertEquals("now", consumer.receiveBody(String.class, PATIENCE_MS));
            Message later = consumer.receive(PATIENCE_MS);
            assertTrue(System.currentTimeMillis() >= sent + 1000);
            assertTrue(later.getJMSDeliveryTime() >= sent + 1000);
        }
    }

    @ParameterizedTest
    @MethodSource("stands")
    void prioritiesAndLifetimesArrive(Stand stand) throws Exception {
        JMSContext context = connect(stand);
        Queue queue = context.createQueue(newQueue(stand));
        context.createProducer().setTimeToLive(200).send(queue, "dies");
        Thread.sleep(600);
        context.createProducer().setPriority(8).setTimeToLive(600_000).send(queue, "lives");
        Message message = context.createConsumer(queue).receive(PATIENCE_MS);
        assertEquals("lives", message.getBody(String.class));
        assertEquals(8, message.getJMSPriority());
        assertTrue(message.getJMSExpiration() > System.currentTimeMillis());
        assertEquals(1, message.getIntProperty("JMSXDeliveryCount"));
    }

    @ParameterizedTest
    @MethodSource("stands")
    void allKindsOfMessagesArrive(Stand stand) throws JMSException {
        JMSContext context = connect(stand);
        Queue queue = context.createQueue(newQueue(stand));
        JMSConsumer consumer = context.createConsumer(queue);
        BytesMessage bytes = context.createBytesMessage();
        bytes.writeBytes(new byte[] {1, 2, 3});
        MapMessage map = context.createMapMessage();
        map.setInt("one", 1);
        StreamMessage stream = context.createStreamMessage();
        stream.writeString("s");
        stream.writeLong(7);
        ObjectMessage object = context.createObjectMessage("serialized");
        Message bare = context.createMessage();
        bare.setStringProperty("p", "v");
        for (Message message : List.of(bytes, map, stream, object, bare)) {
            context.createProducer().send(queue, message);
            Message found = consumer.receive(PATIENCE_MS);
            if (message == bytes) {
                assertArrayEquals(new byte[] {1, 2, 3}, found.getBody(byte[].class));
            } else if (message == map) {
                assertEquals(1, ((MapMessage) found).getInt("one"));
            } else if (message == stream) {
                assertEquals("s", ((StreamMessage) found).readString());
                assertEquals(7, ((StreamMessage) found).readLong());
            } else if (message == object) {
                assertEquals("serialized", ((ObjectMessage) found).getObject());
            } else {
                assertEquals("v", found.getStringProperty("p"));
            }
            assertEquals(queue.getQueueName(), ((Queue) found.getJMSDestination()).getQueueName());
        }
    }

    // -- receiving

    @ParameterizedTest
    @MethodSource("stands")
    void aRollbackBringsMessagesBackAtOnce(Stand stand) throws JMSException {
        String name = newQueue(stand);
        JMSContext sender = connect(stand);
        send(sender, sender.createQueue(name), "m");
        JMSContext context = connect(stand, null, JMSContext.SESSION_TRANSACTED);
        Queue queue = context.createQueue(name);
        JMSConsumer consumer = context.createConsumer(queue);
        for (int attempt = 1; attempt <= 3; attempt++) {
            // A lock lasts for a minute: whoever waited for its end would see nothing.
            Message message = consumer.receive(PATIENCE_MS);
            assertNotNull(message, "attempt " + attempt);
            assertEquals(attempt, message.getIntProperty("JMSXDeliveryCount"));
            assertEquals(attempt > 1, message.getJMSRedelivered());
            if (attempt < 3) {
                context.rollback();
            }
        }
        context.commit();
        assertNull(consumer.receiveNoWait());
        context.commit();
        consumer.close();
        context.createProducer().send(queue, "undone");
        context.rollback();
        context.createProducer().send(queue, "done");
        context.commit();
        assertEquals(List.of("done"), receive(sender.createConsumer(queue), 1));
    }

    @ParameterizedTest
    @MethodSource("stands")
    void afterARollbackTheOrderIsTheSame(Stand stand) throws JMSException {
        JMSContext sender = connect(stand);
        Queue queue = sender.createQueue(newQueue(stand));
        List<String> sent = IntStream.range(0, 8).mapToObj(number -> "m" + number).toList();
        for (String text : sent) {
            // One group, so one partition.
            sender.createProducer().setProperty("JMSXGroupID", "g").send(queue, text);
        }
        JMSContext context = connect(stand, null, JMSContext.SESSION_TRANSACTED);
        JMSConsumer consumer = context.createConsumer(queue);
        for (int rollbacks = 0; rollbacks < 2; rollbacks++) {
            for (String text : sent.subList(0, 3)) {
                assertEquals(text, consumer.receiveBody(String.class, PATIENCE_MS));
            }
            context.rollback();
        }
        for (String text : sent) {
            assertEquals(text, consumer.receiveBody(String.class, PATIENCE_MS));
        }
        context.commit();
        assertNull(consumer.receiveNoWait());
    }

    @ParameterizedTest
    @MethodSource("stands")
    void aTransactionSpansQueueAndTopic(Stand stand) throws JMSException {
        JMSContext other = connect(stand);
        Queue queue = other.createQueue(newQueue(stand));
        Topic topic = other.createTopic(newTopic(stand));
        JMSConsumer subscriber = other.createConsumer(topic);
        send(other, queue, "in");
        JMSContext context = connect(stand, null, JMSContext.SESSION_TRANSACTED);
        JMSConsumer consumer = context.createConsumer(queue);
        for (boolean commits : new boolean[] {false, true}) {
            assertEquals("in", consumer.receiveBody(String.class, PATIENCE_MS));
            context.createProducer().send(topic, commits ? "committed" : "rolled back");
            if (commits) {
                context.commit();
            } else {
                context.rollback();
            }
        }
        assertEquals(List.of("committed"), receive(subscriber, 1));
        assertNull(subscriber.receiveNoWait());
        assertNull(consumer.receiveNoWait());
    }

    @ParameterizedTest
    @MethodSource("stands")
    void aRollbackOnASubscriptionBringsMessagesBackAtOnce(Stand stand) throws JMSException {
        JMSContext context = connect(stand, Broker.newName("client"), JMSContext.SESSION_TRANSACTED);
        String name = newTopic(stand);
        Topic topic = context.createTopic(name);
        JMSConsumer consumer = context.createDurableConsumer(topic, "again");
        JMSContext sender = connect(stand);
        send(sender, sender.createTopic(name), "m");
        assertEquals(List.of("m"), receive(consumer, 1));
        context.rollback();
        Message message = consumer.receive(PATIENCE_MS);
        assertTrue(message.getJMSRedelivered());
        context.commit();
        consumer.close();
        context.unsubscribe("again");
    }

    @ParameterizedTest
    @MethodSource("stands")
    void whatIsNotAcknowledgedComesAgainAfterRecovery(Stand stand) throws JMSException {
        JMSContext context = connect(stand, null, JMSContext.CLIENT_ACKNOWLEDGE);
        Queue queue = context.createQueue(newQueue(stand));
        send(context, queue, "m");
        JMSConsumer consumer = context.createConsumer(queue);
        assertNotNull(consumer.receive(PATIENCE_MS));
        context.recover();
        Message again = consumer.receive(PATIENCE_MS);
        assertTrue(again.getJMSRedelivered());
        again.acknowledge();
        consumer.close();
        assertEquals(0, browse(context, queue, null).size());
    }

    @ParameterizedTest
    @MethodSource("stands")
    void browsersAndSelectorsLeaveTheOthers(Stand stand) throws JMSException {
        JMSContext context = connect(stand);
        Queue queue = context.createQueue(newQueue(stand));
        send(context, queue, "a", "b", "c");
        assertEquals(3, browse(context, queue, null).size());
        assertEquals(1, browse(context, queue, "text = 'b'").size());
        assertEquals(List.of("c"), receive(context.createConsumer(queue, "text = 'c'"), 1));
        assertEquals(2, browse(context, queue, null).size());
    }

    @ParameterizedTest
    @MethodSource("stands")
    void aListenerIsGivenMessages(Stand stand) throws InterruptedException {
        JMSContext context = connect(stand);
        Queue queue = context.createQueue(newQueue(stand));
        BlockingQueue<Message> heard = new LinkedBlockingQueue<>();
        context.createConsumer(queue).setMessageListener(heard::add);
        JMSContext sender = connect(stand);
        send(sender, queue, "a", "b", "c");
        for (int number = 0; number < 3; number++) {
            assertNotNull(heard.poll(PATIENCE_MS, TimeUnit.MILLISECONDS));
        }
    }

    // -- entities that do not exist

    @ParameterizedTest
    @MethodSource("stands")
    void microsoftsLibraryCreatesWhatDoesNotExist(Stand stand) throws JMSException {
        JMSContext context = connect(stand);
        String queue = Broker.newName("made-q");
        String topic = Broker.newName("made-t");
        if (stand.provider == Provider.AZURE) {
            send(context, context.createQueue(queue), "m");
            assertEquals(List.of("m"), receive(context.createConsumer(context.createQueue(queue)), 1));
            JMSConsumer consumer = context.createConsumer(context.createTopic(topic));
            send(context, context.createTopic(topic), "m");
            assertEquals(List.of("m"), receive(consumer, 1));
            assertTrue(stand.broker.administration().getQueueExists(queue));
            assertTrue(stand.broker.administration().getTopicExists(topic));
        } else {
            assertThrows(InvalidDestinationRuntimeException.class, () -> context.createConsumer(context.createQueue(queue)));
            try (Connection connection = stand.provider.factory(stand.broker, null).createConnection()) {
                Session session = connection.createSession();
                assertThrows(InvalidDestinationException.class, () -> session.createProducer(session.createTopic(topic)));
            }
            assertFalse(stand.broker.administration().getQueueExists(queue));
            assertFalse(stand.broker.administration().getTopicExists(topic));
        }
    }

    @ParameterizedTest
    @MethodSource("stands")
    void standardOffersNoSubscriptionsOfClients(Stand stand) {
        String name = Broker.Kind.SIXTEEN_PARTITIONS.newTopic();
        JMSContext context = stand.provider.factory(Broker.STANDARD, Broker.newName("client")).createContext();
        open.add(context);
        for (Runnable attempt : List.<Runnable>of(
                () -> context.createConsumer(context.createTopic(name)),
                () -> context.createDurableConsumer(context.createTopic(name), "s"),
                context::createTemporaryQueue)) {
            var refusal = assertThrows(JMSRuntimeException.class, attempt::run);
            assertTrue(refusal.getMessage().contains("premium tier"), refusal.getMessage());
        }
    }

    private static List<Object> browse(JMSContext context, Queue queue, String selector) throws JMSException {
        try (var browser = context.createBrowser(queue, selector)) {
            return new ArrayList<>(Collections.list(browser.getEnumeration()));
        }
    }
}
