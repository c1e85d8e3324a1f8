package bendybus;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import bendybus.Broker.Kind;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Browsers and selectors of JMS, by Apache Qpid JMS. */
class JmsTest {
    private static final long PATIENCE_MS = Broker.PATIENCE.toMillis();

    private Connection connection;
    private Session session;

    private void connect(Kind kind) throws JMSException {
        connection = kind.broker.jms().createConnection();
        connection.start();
        session = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
    }

    @AfterEach
    void disconnect() throws JMSException {
        connection.close();
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aBrowserSeesAllMessagesAndDeletesNone(Kind kind) throws JMSException { // P-30
        connect(kind);
        Queue queue = session.createQueue(kind.newQueue());
        List<String> sent = IntStream.range(0, 40).mapToObj(Integer::toString).sorted().toList();
        send(queue, sent);
        assertEquals(sent, sorted(browse(queue, null)));
        assertEquals(sent, sorted(browse(queue, null)));
        assertEquals(sent, sorted(receiveAll(session.createConsumer(queue), 40)));
        assertEquals(List.of(), browse(queue, null));
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aBrowserOfDeadLettersLeavesThemThere(Kind kind) throws Exception {
        connect(kind);
        String name = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            table.sender(name).sendMessage(Table.message("dead", "k"));
            var receiver = table.receiver(name);
            receiver.deadLetter(Table.receive(receiver));
        }
        Queue deadLetters = session.createQueue(name + "/$deadletterqueue");
        assertEquals(1, count(deadLetters));
        assertEquals(1, count(deadLetters));
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aSelectorDecidesWhatAConsumerGets(Kind kind) throws JMSException {
        connect(kind);
        Queue queue = session.createQueue(kind.newQueue());
        send(queue, IntStream.range(0, 20).mapToObj(Integer::toString).toList());
        MessageConsumer odd = session.createConsumer(queue, "number BETWEEN 10 AND 19 AND odd");
        assertEquals(List.of("11", "13", "15", "17", "19"), sorted(receiveAll(odd, 5)));
        assertNull(odd.receiveNoWait());
        send(queue, List.of("12", "13"));
        assertEquals(List.of("13"), receiveAll(odd, 1));
        odd.close();
        MessageConsumer all = session.createConsumer(queue);
        assertEquals(16, receiveAll(all, 16).size());
        assertNull(all.receiveNoWait());
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aSelectorDecidesWhatABrowserSees(Kind kind) throws JMSException {
        connect(kind);
        Queue queue = session.createQueue(kind.newQueue());
        send(queue, IntStream.range(0, 20).mapToObj(Integer::toString).toList());
        assertEquals(List.of("3"), browse(queue, "number = 3"));
        assertEquals(10, browse(queue, "odd = FALSE").size());
        assertEquals(List.of(), browse(queue, "number > 100"));
        assertEquals(20, browse(queue, null).size());
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void headersCanBeSelectedBy(Kind kind) throws JMSException {
        connect(kind);
        Queue queue = session.createQueue(kind.newQueue());
        var producer = session.createProducer(queue);
        producer.send(session.createTextMessage("other"));
        TextMessage message = session.createTextMessage("it");
        message.setJMSType("order");
        message.setJMSCorrelationID("c-1");
        producer.send(message, DeliveryMode.NON_PERSISTENT, 8, 0);
        for (String selector : List.of("JMSType = 'order'", "JMSCorrelationID = 'c-1'", "JMSPriority > 4",
                "JMSDeliveryMode = 'NON_PERSISTENT'", "JMSMessageID = '" + message.getJMSMessageID() + "'",
                "JMSType = 'order' AND JMSTimestamp = " + message.getJMSTimestamp())) {
            assertEquals(List.of("it"), browse(queue, selector), selector);
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void whatIsRecoveredIsSelectedAgain(Kind kind) throws JMSException {
        connect(kind);
        Queue queue = session.createQueue(kind.newQueue());
        send(queue, List.of("1", "2", "3"));
        MessageConsumer consumer = session.createConsumer(queue, "odd");
        assertEquals(List.of("1", "3"), sorted(unacknowledged(consumer, 2)));
        session.recover();
        assertEquals(List.of("1", "3"), sorted(receiveAll(consumer, 2)));
        consumer.close();
        assertEquals(List.of("2"), browse(queue, null));
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aSubscriptionIsConsumedBySelector(Kind kind) throws JMSException {
        connect(kind);
        String topic = kind.newTopic();
        kind.broker.administration().createSubscription(topic, "s", new CreateSubscriptionOptions());
        var producer = session.createProducer(session.createTopic(topic));
        for (int number = 1; number <= 3; number++) {
            producer.send(numbered(number));
        }
        Queue subscription = session.createQueue(topic + "/subscriptions/s");
        assertEquals(List.of("2"), receiveAll(session.createConsumer(subscription, "NOT odd"), 1));
        assertEquals(List.of("1", "3"), sorted(browse(subscription, null)));
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aSelectorThatTheServerCannotReadIsRefused(Kind kind) throws JMSException {
        connect(kind);
        Queue queue = session.createQueue(kind.newQueue());
        // The client would take it: its limit is not ours.
        String endless = "number = 1" + " OR number = 1".repeat(200);
        var refusal = assertThrows(JMSException.class, () -> session.createConsumer(queue, endless));
        assertEquals(true, refusal.getMessage().contains("selector"), refusal.getMessage());
    }

    // -- helpers

    private TextMessage numbered(int number) throws JMSException {
        TextMessage message = session.createTextMessage(Integer.toString(number));
        message.setIntProperty("number", number);
        message.setBooleanProperty("odd", number % 2 == 1);
        return message;
    }

    private void send(Queue queue, List<String> numbers) throws JMSException {
        var producer = session.createProducer(queue);
        for (String number : numbers) {
            producer.send(numbered(Integer.parseInt(number)));
        }
        producer.close();
    }

    private int count(Queue queue) throws JMSException {
        try (var browser = session.createBrowser(queue)) {
            return Collections.list(browser.getEnumeration()).size();
        }
    }

    private List<String> browse(Queue queue, String selector) throws JMSException {
        List<String> seen = new ArrayList<>();
        try (var browser = session.createBrowser(queue, selector)) {
            for (Object message : Collections.list(browser.getEnumeration())) {
                seen.add(((TextMessage) message).getText());
            }
        }
        return seen;
    }

    private static List<String> unacknowledged(MessageConsumer consumer, int count) throws JMSException {
        List<String> received = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            received.add(((TextMessage) consumer.receive(PATIENCE_MS)).getText());
        }
        return received;
    }

    private static List<String> receiveAll(MessageConsumer consumer, int count) throws JMSException {
        List<String> received = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            Message message = consumer.receive(PATIENCE_MS);
            received.add(((TextMessage) message).getText());
            message.acknowledge();
        }
        return received;
    }

    private static List<String> sorted(List<String> texts) {
        return texts.stream().sorted().toList();
    }
}
