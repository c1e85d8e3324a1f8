package bendybus;

import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.models.SubQueue;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.List;

/** One connection's senders and receivers, closed together, and short words for what the tests do. */
final class Table implements AutoCloseable {
    private final ServiceBusClientBuilder builder;
    private final Deque<AutoCloseable> opened = new ArrayDeque<>();

    Table(ServiceBusClientBuilder builder) {
        // Clients of one builder share its connection, which is where a transaction lives.
        this.builder = builder;
    }

    ServiceBusSenderClient sender(String entity) {
        return keep(builder.sender().queueName(entity).buildClient());
    }

    ServiceBusSenderClient topicSender(String topic) {
        return keep(builder.sender().topicName(topic).buildClient());
    }

    ServiceBusReceiverClient receiver(String queue) {
        return keep(builder.receiver().queueName(queue).disableAutoComplete().buildClient());
    }

    ServiceBusReceiverClient receiver(String topic, String subscription) {
        var receivers = builder.receiver().topicName(topic).subscriptionName(subscription);
        return keep(receivers.disableAutoComplete().buildClient());
    }

    ServiceBusReceiverClient session(String queue, String session) {
        var sessions = keep(builder.sessionReceiver().queueName(queue).disableAutoComplete().buildClient());
        return keep(sessions.acceptSession(session));
    }

    /** The bodies of all that is there, locked, deferred and scheduled included, in alphabetical order. */
    List<String> contents(String queue) {
        return contents(queue, SubQueue.NONE);
    }

    List<String> contents(String queue, SubQueue subQueue) {
        List<String> bodies = new ArrayList<>();
        // A receiver of its own, since each goes on peeking where it stopped.
        try (var browser = builder.receiver().queueName(queue).subQueue(subQueue).buildClient()) {
            List<ServiceBusReceivedMessage> more;
            do {
                more = browser.peekMessages(100).stream().toList();
                more.forEach(message -> bodies.add(body(message)));
            } while (!more.isEmpty());
        }
        return bodies.stream().sorted().toList();
    }

    static ServiceBusMessage message(String body) {
        return new ServiceBusMessage(body);
    }

    static ServiceBusMessage message(String body, String key) {
        return new ServiceBusMessage(body).setPartitionKey(key);
    }

    static String body(ServiceBusReceivedMessage message) {
        return message.getBody().toString();
    }

    static ServiceBusReceivedMessage receive(ServiceBusReceiverClient receiver) {
        return receive(receiver, 1).get(0);
    }

    static List<ServiceBusReceivedMessage> receive(ServiceBusReceiverClient receiver, int number) {
        List<ServiceBusReceivedMessage> messages = new ArrayList<>();
        while (messages.size() < number) {
            var more = receiver.receiveMessages(number - messages.size(), Broker.PATIENCE).stream().toList();
            if (more.isEmpty()) {
                throw new AssertionError("only " + messages.size() + " of " + number + " came");
            }
            messages.addAll(more);
        }
        return messages;
    }

    private <T extends AutoCloseable> T keep(T client) {
        opened.push(client);
        return client;
    }

    @Override
    public void close() throws Exception {
        while (!opened.isEmpty()) {
            opened.pop().close();
        }
    }
}
