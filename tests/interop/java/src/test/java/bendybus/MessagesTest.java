package bendybus;

import static bendybus.Table.body;
import static bendybus.Table.message;
import static bendybus.Table.receive;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import bendybus.Broker.Kind;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusFailureReason;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Messages of queues, sessions and topics, each kind of client once. */
class MessagesTest {
    @ParameterizedTest
    @EnumSource(Kind.class)
    void whatIsSentIsReceivedWithAllItsProperties(Kind kind) throws Exception { // P-05 P-12
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sent = message("x", "k").setMessageId("1").setSubject("s").setContentType("t").setCorrelationId("c")
                .setReplyTo("r").setReplyToSessionId("rs").setTo("to").setTimeToLive(Duration.ofHours(1));
            sent.getApplicationProperties().putAll(Map.of("text", "v", "number", 5L, "flag", true));
            table.sender(queue).sendMessage(sent);
            var receiver = table.receiver(queue);
            var received = receive(receiver);
            assertEquals("x", body(received));
            assertEquals(List.of("k", "1", "s", "t"), List.of(received.getPartitionKey(), received.getMessageId(),
                received.getSubject(), received.getContentType()));
            assertEquals(List.of("c", "r", "rs", "to"), List.of(received.getCorrelationId(), received.getReplyTo(),
                received.getReplyToSessionId(), received.getTo()));
            assertEquals(sent.getApplicationProperties(), received.getApplicationProperties());
            assertEquals(Duration.ofHours(1), received.getTimeToLive());
            assertEquals(0, received.getDeliveryCount());
            assertTrue(received.getLockedUntil().isAfter(received.getEnqueuedTime()));
            assertTrue(receiver.renewMessageLock(received).isAfter(received.getEnqueuedTime()));
            receiver.complete(received);
            assertEquals(List.of(), table.contents(queue));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void messagesAreSettledInEveryWay(Kind kind) throws Exception { // P-05
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var receiver = table.receiver(queue);
            table.sender(queue).sendMessage(message("x"));
            receiver.abandon(receive(receiver), new AbandonOptions().setPropertiesToModify(Map.of("why", "because")));
            var again = receive(receiver);
            assertEquals(1, again.getDeliveryCount());
            assertEquals("because", again.getApplicationProperties().get("why"));
            receiver.defer(again);
            var deferred = receiver.receiveDeferredMessage(again.getSequenceNumber());
            var why = new DeadLetterOptions().setDeadLetterReason("R").setDeadLetterErrorDescription("D");
            receiver.deadLetter(deferred, why);
            var builder = kind.broker.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE);
            try (var letters = builder.receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient()) {
                var letter = receive(letters);
                assertEquals(List.of("R", "D"),
                    List.of(letter.getDeadLetterReason(), letter.getDeadLetterErrorDescription()));
            }
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void messagesAreScheduledAndCancelled(Kind kind) throws Exception { // P-35
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            var later = OffsetDateTime.now().plusHours(1);
            long one = sender.scheduleMessage(message("one"), later);
            // Scheduled when they are iterated over, not before.
            sender.scheduleMessages(List.of(message("two", "k"), message("three", "k")), later).forEach(number -> {});
            assertEquals(List.of("one", "three", "two"), table.contents(queue));
            sender.cancelScheduledMessage(one);
            assertEquals(List.of("three", "two"), table.contents(queue));
            sender.scheduleMessage(message("soon"), OffsetDateTime.now().plusSeconds(1));
            assertEquals("soon", body(receive(table.receiver(queue))));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void sessionsAreAcceptedAndRemembered(Kind kind) throws Exception { // P-13
        String queue = kind.newQueue(new CreateQueueOptions().setSessionRequired(true));
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            for (var body : List.of("a1", "a2", "b1")) {
                sender.sendMessage(message(body).setSessionId(body.substring(0, 1)));
            }
            var named = table.session(queue, "a");
            assertEquals(List.of("a1", "a2"), receive(named, 2).stream().map(Table::body).toList());
            named.setSessionState("state".getBytes());
            assertArrayEquals("state".getBytes(), named.getSessionState());
            assertTrue(named.renewSessionLock().isAfter(OffsetDateTime.now()));
            var builder = kind.broker.builder().sessionReceiver().queueName(queue).disableAutoComplete();
            try (var sessions = builder.buildClient(); var next = sessions.acceptNextSession()) {
                assertEquals("b", next.getSessionId());
                assertEquals("b1", body(receive(next)));
                var taken = assertThrows(AmqpException.class, () -> sessions.acceptSession("a"));
                assertTrue(taken.getMessage().contains("cannot be accepted"), taken.getMessage());
            }
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void processorsProcessMessagesAndSessions(Kind kind) throws Exception { // P-05 P-13
        String queue = kind.newQueue();
        String sessions = kind.newQueue(new CreateQueueOptions().setSessionRequired(true));
        var processed = new LinkedBlockingQueue<String>();
        try (var table = new Table(kind.broker.builder());
            var processor = kind.broker.builder().processor().queueName(queue).maxConcurrentCalls(4)
                .processMessage(context -> processed.add(body(context.getMessage())))
                .processError(error -> processed.add(error.getException().toString())).buildProcessorClient();
            var sessionProcessor = kind.broker.builder().sessionProcessor().queueName(sessions)
                .maxConcurrentSessions(2)
                .processMessage(context -> processed.add(body(context.getMessage())))
                .processError(error -> processed.add(error.getException().toString())).buildProcessorClient()) {
            processor.start();
            sessionProcessor.start();
            table.sender(queue).sendMessage(message("plain"));
            table.sender(sessions).sendMessage(message("in a session").setSessionId("s"));
            var seen = Set.of(next(processed), next(processed));
            assertEquals(Set.of("plain", "in a session"), seen);
        }
    }

    private static String next(LinkedBlockingQueue<String> processed) throws InterruptedException {
        return String.valueOf(processed.poll(Broker.PATIENCE.toSeconds(), TimeUnit.SECONDS));
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void rulesDecideWhoGetsWhat(Kind kind) throws Exception { // P-01 P-24
        String topic = kind.newTopic();
        var client = kind.broker.administration();
        client.createSubscription(topic, "all");
        client.createSubscription(topic, "red", "red", new CreateSubscriptionOptions(),
            new CreateRuleOptions(new SqlRuleFilter("colour = 'red'")).setAction(new SqlRuleAction("SET seen = 1")));
        client.createSubscription(topic, "none", "never", new CreateSubscriptionOptions(),
            new CreateRuleOptions(new FalseRuleFilter()));
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.topicSender(topic);
            for (var colour : List.of("red", "blue")) {
                var message = new ServiceBusMessage(colour);
                message.getApplicationProperties().put("colour", colour);
                sender.sendMessage(message);
            }
            var all = receive(table.receiver(topic, "all"), 2).stream().map(Table::body);
            assertEquals(Set.of("red", "blue"), all.collect(Collectors.toSet()));
            var red = receive(table.receiver(topic, "red"));
            assertEquals("red", body(red));
            assertEquals(1, ((Number) red.getApplicationProperties().get("seen")).intValue());
            assertEquals(0, client.getSubscriptionRuntimeProperties(topic, "none").getTotalMessageCount());
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void rulesAreManagedOverAmqp(Kind kind) throws Exception { // P-24 P-35
        String topic = kind.newTopic();
        kind.broker.administration().createSubscription(topic, "s");
        var builder = kind.broker.builder().ruleManager().topicName(topic).subscriptionName("s");
        try (var rules = builder.buildClient()) {
            rules.deleteRule("$Default");
            rules.createRule("sql", new CreateRuleOptions(new SqlRuleFilter("a = 1")).setAction(new SqlRuleAction("SET b = 2")));
            rules.createRule("none", new CreateRuleOptions(new FalseRuleFilter()));
            var typed = new CorrelationRuleFilter().setLabel("l");
            typed.getProperties().putAll(Map.of("text", "five", "number", 5, "flag", true));
            rules.createRule("typed", new CreateRuleOptions(typed));
            var listed = rules.listRules().stream().collect(Collectors.toMap(rule -> rule.getName(), rule -> rule));
            assertEquals(Set.of("sql", "none", "typed"), listed.keySet());
            assertEquals("a = 1", ((SqlRuleFilter) listed.get("sql").getFilter()).getSqlExpression());
            assertEquals("SET b = 2", ((SqlRuleAction) listed.get("sql").getAction()).getSqlExpression());
            // The SDK shows every value as a string; the rule has the number.
            var shown = ((CorrelationRuleFilter) listed.get("typed").getFilter()).getProperties();
            assertEquals(Map.of("text", "five", "number", "5", "flag", "true"), shown);
            var overHttp = kind.broker.administration().getRule(topic, "s", "typed").getFilter();
            assertEquals(shown, ((CorrelationRuleFilter) overHttp).getProperties());
            assertTrue(listed.get("none").getFilter() instanceof FalseRuleFilter);
            assertThrows(ServiceBusException.class, () -> rules.createRule("sql", new CreateRuleOptions(new FalseRuleFilter())));
            assertThrows(ServiceBusException.class, () -> rules.deleteRule("missing"));
        }
    }

    @Test
    void tlsAndWebSocketsAreSpokenOnTheSamePort() throws Exception { // B-10
        String queue = Kind.SIXTEEN_PARTITIONS.newQueue();
        try (var tls = new Table(Broker.STANDARD.tlsBuilder())) {
            tls.sender(queue).sendMessage(message("over TLS"));
            assertEquals("over TLS", body(receive(tls.receiver(queue))));
        }
        var builder = Broker.STANDARD.tlsBuilder().transportType(AmqpTransportType.AMQP_WEB_SOCKETS);
        try (var sockets = new Table(builder)) {
            sockets.sender(queue).sendMessage(message("over a WebSocket"));
            assertTrue(sockets.contents(queue).contains("over a WebSocket"));
        }
    }

    @Test
    void whatIsMissingIsNamed() throws Exception {
        try (var table = new Table(Broker.STANDARD.builder())) {
            var nowhere = table.sender("nowhere");
            var refused = assertThrows(ServiceBusException.class, () -> nowhere.sendMessage(message("x")));
            assertEquals(ServiceBusFailureReason.MESSAGING_ENTITY_NOT_FOUND, refused.getReason());
        }
        var builder = new Broker(Broker.STANDARD.connectionString().replaceFirst("SharedAccessKey=[^;]+", "SharedAccessKey=no"));
        try (var table = new Table(builder.builder())) {
            var sender = table.sender("nowhere");
            var refused = assertThrows(ServiceBusException.class, () -> sender.sendMessage(message("x")));
            assertEquals(ServiceBusFailureReason.UNAUTHORIZED, refused.getReason());
        }
    }
}
