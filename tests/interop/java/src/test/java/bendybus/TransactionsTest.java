package bendybus;

import static bendybus.Table.message;
import static bendybus.Table.receive;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import bendybus.Broker.Kind;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.OffsetDateTime;
import java.util.List;
import java.util.stream.IntStream;
import org.junit.jupiter.api.function.Executable;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/**
 * Transactions about one entity: all or nothing, and what a partitioned entity asks of keys.
 *
 * <p>The Java SDK takes any answer to a send in a transaction for a yes (ReactorSender), so what was refused is
 * told by the commit, which fails for it. Requests and settlements are refused at once.
 */
class TransactionsTest {
    @ParameterizedTest
    @EnumSource(Kind.class)
    void aCommitMakesSendsAndSettlementsVisibleTogether(Kind kind) throws Exception { // P-23
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            var receiver = table.receiver(queue);
            sender.sendMessage(message("old", "k"));
            var old = receive(receiver);
            var transaction = sender.createTransaction();
            sender.sendMessage(message("alone", "k"), transaction);
            sender.sendMessages(List.of(message("list 1", "k"), message("list 2", "k")), transaction);
            var batch = sender.createMessageBatch();
            batch.tryAddMessage(message("batch", "k"));
            sender.sendMessages(batch, transaction);
            sender.scheduleMessage(message("later", "k"), OffsetDateTime.now().plusHours(1), transaction);
            receiver.complete(old, new CompleteOptions().setTransactionContext(transaction));
            assertEquals(List.of("old"), table.contents(queue));
            sender.commitTransaction(transaction);
            assertEquals(List.of("alone", "batch", "later", "list 1", "list 2"), table.contents(queue));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aRollbackLeavesNoTrace(Kind kind) throws Exception { // P-23
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            var receiver = table.receiver(queue);
            sender.sendMessage(message("old", "k"));
            var old = receive(receiver);
            var transaction = receiver.createTransaction();
            sender.sendMessage(message("new", "k"), transaction);
            sender.scheduleMessage(message("later", "k"), OffsetDateTime.now().plusHours(1), transaction);
            receiver.complete(old, new CompleteOptions().setTransactionContext(transaction));
            receiver.rollbackTransaction(transaction);
            assertEquals(List.of("old"), table.contents(queue));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void everySettlementCanBePartOfOne(Kind kind) throws Exception { // P-23
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            var receiver = table.receiver(queue);
            for (var body : List.of("completed", "abandoned", "deferred", "dead")) {
                sender.sendMessage(message(body, "k"));
            }
            var messages = receive(receiver, 4);
            var transaction = receiver.createTransaction();
            settleEach(receiver, messages, transaction);
            assertEquals(List.of(), table.contents(queue, SubQueue.DEAD_LETTER_QUEUE));
            receiver.commitTransaction(transaction);
            assertEquals(List.of("abandoned", "deferred"), table.contents(queue));
            assertEquals(List.of("dead"), table.contents(queue, SubQueue.DEAD_LETTER_QUEUE));
            var again = receive(receiver);
            assertEquals(List.of("abandoned", 1L), List.of(Table.body(again), again.getDeliveryCount()));
            var deferred = receiver.receiveDeferredMessage(messages.get(2).getSequenceNumber());
            // A message without a link of its own is settled by a request.
            var second = receiver.createTransaction();
            receiver.complete(deferred, new CompleteOptions().setTransactionContext(second));
            receiver.complete(again, new CompleteOptions().setTransactionContext(second));
            receiver.commitTransaction(second);
            assertEquals(List.of(), table.contents(queue));
        }
    }

    private static void settleEach(
        ServiceBusReceiverClient receiver, List<ServiceBusReceivedMessage> four, ServiceBusTransactionContext in) {
        receiver.complete(four.get(0), new CompleteOptions().setTransactionContext(in));
        receiver.abandon(four.get(1), new AbandonOptions().setTransactionContext(in));
        receiver.defer(four.get(2), new DeferOptions().setTransactionContext(in));
        var why = new DeadLetterOptions().setDeadLetterReason("R").setDeadLetterErrorDescription("D");
        receiver.deadLetter(four.get(3), why.setTransactionContext(in));
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void onlyAPartitionedQueueWantsAKey(Kind kind) throws Exception { // P-19
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var refused = "needs a SessionId, a PartitionKey or a MessageId";
            sendTogether(table.sender(queue), kind.partitioned ? refused : null, message("no key"));
            assertEquals(kind.partitioned ? List.of() : List.of("no key"), table.contents(queue));
            sendTogether(table.sender(queue), null, message("by its id").setMessageId("1"));
            assertTrue(table.contents(queue).contains("by its id"));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void onlyAPartitionedQueueWantsOneKeyForAll(Kind kind) throws Exception { // P-20
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var refused = kind.partitioned ? "must have the same SessionId, PartitionKey or MessageId" : null;
            sendTogether(table.sender(queue), refused, message("a", "1"), message("b", "2"));
            assertEquals(kind.partitioned ? List.of() : List.of("a", "b"), table.contents(queue));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void onlyAnUnpartitionedQueueTakesTwoSessions(Kind kind) throws Exception { // P-21 P-22
        String queue = kind.newQueue(new CreateQueueOptions().setSessionRequired(true));
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            var one = message("a").setSessionId("1");
            sendTogether(sender, null, one, message("b").setSessionId("1").setPartitionKey("1"));
            var refused = kind.partitioned ? "must have the same SessionId, PartitionKey or MessageId" : null;
            sendTogether(sender, refused, message("c").setSessionId("1"), message("d").setSessionId("2"));
            sendTogether(sender, "SessionId was not set", message("e", "1"));
            assertEquals(kind.partitioned ? List.of("a", "b") : List.of("a", "b", "c", "d"), table.contents(queue));
            // Said by the SDK itself, before anything is sent.
            var unlike = message("f").setSessionId("1");
            assertThrows(IllegalArgumentException.class, () -> unlike.setPartitionKey("2"));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aSessionIsReceivedFromAndSentToInOne(Kind kind) throws Exception { // P-13 P-23
        String queue = kind.newQueue(new CreateQueueOptions().setSessionRequired(true));
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            sender.sendMessage(message("ask").setSessionId("1"));
            var session = table.session(queue, "1");
            var ask = receive(session);
            var transaction = session.createTransaction();
            session.complete(ask, new CompleteOptions().setTransactionContext(transaction));
            sender.sendMessage(message("answer").setSessionId("1"), transaction);
            session.commitTransaction(transaction);
            assertEquals("answer", Table.body(receive(session)));
        }
    }

    @ParameterizedTest
    @EnumSource(value = Kind.class, names = "UNPARTITIONED", mode = EnumSource.Mode.EXCLUDE)
    void settlementsInAnotherPartitionAreRefused(Kind kind) throws Exception { // P-20
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            for (var key : List.of("a", "b", "c", "d", "e", "f", "g", "h")) {
                sender.sendMessage(message(key, key));
            }
            var receiver = table.receiver(queue);
            var messages = receive(receiver, 8);
            var first = messages.get(0);
            var distant = messages.stream().filter(message -> partition(message) != partition(first)).findAny();
            var transaction = receiver.createTransaction();
            var options = new CompleteOptions().setTransactionContext(transaction);
            receiver.complete(first, options);
            assertRefused("cannot span multiple entities or partitions",
                () -> receiver.complete(distant.orElseThrow(), options));
            assertRefused("has been rolled back", () -> receiver.commitTransaction(transaction));
            assertEquals(8, table.contents(queue).size());
        }
    }

    private static long partition(ServiceBusReceivedMessage message) { // P-31
        return message.getSequenceNumber() >>> 48;
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void schedulingHasTheSameRules(Kind kind) throws Exception { // P-19 P-20
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            var due = OffsetDateTime.now().plusHours(1);
            var transaction = sender.createTransaction();
            Executable keyless = () -> sender.scheduleMessage(message("no key"), due, transaction);
            if (kind.partitioned) {
                assertRefused("needs a SessionId, a PartitionKey or a MessageId", keyless);
                sender.rollbackTransaction(transaction);
                assertEquals(List.of(), table.contents(queue));
                return;
            }
            sender.scheduleMessage(message("no key"), due, transaction);
            sender.commitTransaction(transaction);
            assertEquals(List.of("no key"), table.contents(queue));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aTransactionOfADuplicateSendsTheRest(Kind kind) throws Exception { // P-15 P-23
        String queue = kind.newQueue(new CreateQueueOptions().setDuplicateDetectionRequired(true));
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            sender.sendMessage(message("first", "k").setMessageId("1"));
            var again = message("again", "k").setMessageId("1");
            sendTogether(sender, null, again, message("second", "k").setMessageId("2"));
            assertEquals(List.of("first", "second"), table.contents(queue));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aHundredMessagesAreAllowedAndNoMore(Kind kind) throws Exception { // P-23
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            var hundred = IntStream.range(0, 100).mapToObj(number -> message("" + number, "k")).toList();
            var transaction = sender.createTransaction();
            sender.sendMessages(hundred, transaction);
            sender.sendMessage(message("one more", "k"), transaction);
            assertRefused("more than 100 messages", () -> sender.commitTransaction(transaction));
            var other = sender.createTransaction();
            sender.sendMessages(hundred, other);
            sender.commitTransaction(other);
            assertEquals(100, table.contents(queue).size());
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aFinishedTransactionIsUnknown(Kind kind) throws Exception { // P-23
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            var transaction = sender.createTransaction();
            sender.commitTransaction(transaction);
            assertRefused("hasn't been declared yet, or has already been discharged",
                () -> sender.commitTransaction(transaction));
            assertRefused("hasn't been declared yet, or has already been discharged",
                () -> sender.rollbackTransaction(transaction));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void otherQueuesAreRefused(Kind kind) throws Exception { // P-23
        String queue = kind.newQueue();
        String other = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            var transaction = sender.createTransaction();
            sender.sendMessage(message("here", "k"), transaction);
            table.sender(other).sendMessage(message("there", "k"), transaction);
            assertRefused("cannot span multiple top-level entities", () -> sender.commitTransaction(transaction));
            assertEquals(List.of(), table.contents(queue));
            assertEquals(List.of(), table.contents(other));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void whatIsOpenEndsWithItsConnection(Kind kind) throws Exception { // P-23
        String queue = kind.newQueue();
        try (var table = new Table(kind.broker.builder())) {
            var sender = table.sender(queue);
            sender.sendMessage(message("never", "k"), sender.createTransaction());
        }
        try (var table = new Table(kind.broker.builder())) {
            assertEquals(List.of(), table.contents(queue));
        }
    }

    /** One transaction of these messages; `refused` is what the commit says, or null. */
    private static void sendTogether(ServiceBusSenderClient sender, String refused, ServiceBusMessage... messages) {
        var transaction = sender.createTransaction();
        for (var message : messages) {
            sender.sendMessage(message, transaction);
        }
        if (refused == null) {
            sender.commitTransaction(transaction);
        } else {
            assertRefused(refused, () -> sender.commitTransaction(transaction));
        }
    }

    static void assertRefused(String why, Executable work) {
        var refused = assertThrows(ServiceBusException.class, work);
        assertTrue(refused.getMessage().contains(why), refused.getMessage());
    }
}
