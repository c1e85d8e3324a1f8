package bendybus;

import static bendybus.Table.body;
import static bendybus.Table.message;
import static bendybus.Table.receive;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import bendybus.Broker.Kind;
import com.azure.messaging.servicebus.models.CompleteOptions;
import java.util.List;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Transactions that span entities: `enableCrossEntityTransactions`. */
class CrossEntityTest {
    @ParameterizedTest
    @EnumSource(Kind.class)
    void whatIsReceivedHereIsSentElsewhereOrNot(Kind kind) throws Exception { // P-23 P-34
        String queue = kind.newQueue();
        String other = kind.newQueue();
        try (var plain = new Table(kind.broker.builder())) {
            plain.sender(queue).sendMessage(message("order", "k"));
            try (var table = new Table(kind.broker.builder().enableCrossEntityTransactions())) {
                var receiver = table.receiver(queue);
                var order = receive(receiver);
                var sender = table.sender(other);
                var rolledBack = receiver.createTransaction();
                sender.sendMessage(message("never", "k"), rolledBack);
                receiver.rollbackTransaction(rolledBack);
                var transaction = receiver.createTransaction();
                receiver.complete(order, new CompleteOptions().setTransactionContext(transaction));
                sender.sendMessage(message("bill", "k"), transaction);
                assertEquals(List.of(), plain.contents(other));
                receiver.commitTransaction(transaction);
            }
            var elsewhere = plain.receiver(other);
            var bill = receive(elsewhere);
            assertEquals(List.of("bill", "k"), List.of(body(bill), bill.getPartitionKey()));
            elsewhere.complete(bill);
            assertEquals(List.of(), plain.contents(queue));
            assertEquals(List.of(), plain.contents(other));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void nothingNeedsAKeyWhereSomethingIsSettled(Kind kind) throws Exception { // P-37
        String queue = kind.newQueue();
        String other = kind.newQueue();
        try (var plain = new Table(kind.broker.builder())) {
            plain.sender(queue).sendMessage(message("order"));
            try (var table = new Table(kind.broker.builder().enableCrossEntityTransactions())) {
                var receiver = table.receiver(queue);
                var order = receive(receiver);
                var transaction = receiver.createTransaction();
                table.sender(other).sendMessages(List.of(message("a", "1"), message("b", "2")), transaction);
                table.sender(other).sendMessage(message("keyless"), transaction);
                table.sender(queue).sendMessage(message("back"), transaction);
                receiver.complete(order, new CompleteOptions().setTransactionContext(transaction));
                receiver.commitTransaction(transaction);
            }
            var elsewhere = plain.receiver(other);
            assertEquals(3, receive(elsewhere, 3).size());
            assertEquals("back", body(receive(plain.receiver(queue))));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void whatIsReceivedIsPublished(Kind kind) throws Exception { // P-01 P-23
        String queue = kind.newQueue();
        String topic = kind.newTopic();
        kind.broker.administration().createSubscription(topic, "s");
        try (var plain = new Table(kind.broker.builder())) {
            plain.sender(queue).sendMessage(message("order", "k"));
            try (var table = new Table(kind.broker.builder().enableCrossEntityTransactions())) {
                var receiver = table.receiver(queue);
                var order = receive(receiver);
                var transaction = receiver.createTransaction();
                receiver.complete(order, new CompleteOptions().setTransactionContext(transaction));
                table.topicSender(topic).sendMessage(message("news", "k"), transaction);
                receiver.commitTransaction(transaction);
            }
            assertEquals("news", body(receive(plain.receiver(topic, "s"))));
            assertEquals(List.of(), plain.contents(queue));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void whatASubscriptionHasIsSentElsewhere(Kind kind) throws Exception { // P-01 P-23
        String queue = kind.newQueue();
        String topic = kind.newTopic();
        kind.broker.administration().createSubscription(topic, "s");
        try (var plain = new Table(kind.broker.builder())) {
            plain.topicSender(topic).sendMessage(message("news", "k"));
            try (var table = new Table(kind.broker.builder().enableCrossEntityTransactions())) {
                var receiver = table.receiver(topic, "s");
                var news = receive(receiver);
                var transaction = receiver.createTransaction();
                receiver.complete(news, new CompleteOptions().setTransactionContext(transaction));
                table.sender(queue).sendMessage(message("order", "k"), transaction);
                receiver.commitTransaction(transaction);
            }
            assertEquals("order", body(receive(plain.receiver(queue))));
        }
    }

    @ParameterizedTest
    @EnumSource(Kind.class)
    void aSecondEntityIsNotReceivedFrom(Kind kind) throws Exception { // P-23
        String queue = kind.newQueue();
        String other = kind.newQueue();
        try (var table = new Table(kind.broker.builder().enableCrossEntityTransactions())) {
            table.sender(queue).sendMessage(message("x", "k"));
            receive(table.receiver(queue));
            var second = table.receiver(other);
            var terminated = assertThrows(RuntimeException.class, () -> receive(second));
            // What the SDK makes of amqp:not-allowed on a link.
            var why = assertInstanceOf(UnsupportedOperationException.class, terminated.getCause());
            assertTrue(why.getMessage().contains("cannot receive from"), why.getMessage());
        }
    }
}
