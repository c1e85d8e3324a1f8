package bendybus;

import static bendybus.Broker.newName;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.azure.core.exception.HttpResponseException;
import com.azure.core.exception.ResourceExistsException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.core.http.rest.PagedIterable;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.models.AccessRights;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.messaging.servicebus.administration.models.EntityStatus;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.MessagingSku;
import com.azure.messaging.servicebus.administration.models.NamespaceType;
import com.azure.messaging.servicebus.administration.models.SharedAccessAuthorizationRule;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.List;
import java.util.Set;
import java.util.function.Function;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Everything that `ServiceBusAdministrationClient` offers. */
class AdministrationTest {
    private final ServiceBusAdministrationClient client = Broker.STANDARD.administration();

    @Test
    void theNamespaceIsDescribed() {
        var standard = client.getNamespaceProperties();
        assertEquals(MessagingSku.STANDARD, standard.getMessagingSku());
        assertEquals(NamespaceType.MESSAGING, standard.getNamespaceType());
        assertTrue(standard.getCreatedTime().isBefore(OffsetDateTime.now().plusMinutes(1)));
        assertFalse(standard.getName().isEmpty());
        var premium = Broker.PREMIUM.administration().getNamespaceProperties();
        assertEquals(MessagingSku.PREMIUM, premium.getMessagingSku());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aQueueHasWhatItWasMadeWith(boolean partitioned) { // P-01 P-06 P-08
        String name = newName("q");
        client.createQueue(name, new CreateQueueOptions()
            .setAutoDeleteOnIdle(Duration.ofHours(2))
            .setBatchedOperationsEnabled(false)
            .setDeadLetteringOnMessageExpiration(true)
            .setDefaultMessageTimeToLive(Duration.ofDays(3))
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(5))
            .setDuplicateDetectionRequired(true)
            .setLockDuration(Duration.ofSeconds(45))
            .setMaxDeliveryCount(7)
            .setMaxSizeInMegabytes(2048)
            .setPartitioningEnabled(partitioned)
            .setSessionRequired(true)
            .setUserMetadata("über <&>"));
        var queue = client.getQueue(name);
        assertEquals(name, queue.getName());
        assertEquals(Duration.ofHours(2), queue.getAutoDeleteOnIdle());
        assertFalse(queue.isBatchedOperationsEnabled());
        assertTrue(queue.isDeadLetteringOnMessageExpiration());
        assertEquals(Duration.ofDays(3), queue.getDefaultMessageTimeToLive());
        assertEquals(Duration.ofMinutes(5), queue.getDuplicateDetectionHistoryTimeWindow());
        assertTrue(queue.isDuplicateDetectionRequired());
        assertEquals(Duration.ofSeconds(45), queue.getLockDuration());
        assertEquals(7, queue.getMaxDeliveryCount());
        assertEquals(partitioned ? 16 * 2048 : 2048, queue.getMaxSizeInMegabytes());
        assertEquals(partitioned, queue.isPartitioningEnabled());
        assertTrue(queue.isSessionRequired());
        assertEquals("über <&>", queue.getUserMetadata());
        assertEquals(EntityStatus.ACTIVE, queue.getStatus());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aQueueIsUpdatedAndDeleted(boolean partitioned) { // P-32
        String name = newName("q");
        String target = newName("q");
        client.createQueue(target);
        var queue = client.createQueue(name, new CreateQueueOptions().setPartitioningEnabled(partitioned));
        var updated = client.updateQueue(queue
            .setLockDuration(Duration.ofSeconds(20))
            .setMaxDeliveryCount(3)
            .setStatus(EntityStatus.SEND_DISABLED)
            .setForwardDeadLetteredMessagesTo(target)
            .setUserMetadata("changed"));
        assertEquals(Duration.ofSeconds(20), updated.getLockDuration());
        var found = client.getQueue(name);
        assertEquals(3, found.getMaxDeliveryCount());
        assertEquals(EntityStatus.SEND_DISABLED, found.getStatus());
        assertEquals("changed", found.getUserMetadata());
        assertTrue(found.getForwardDeadLetteredMessagesTo().endsWith(target), found.getForwardDeadLetteredMessagesTo());
        assertEquals(partitioned, found.isPartitioningEnabled());
        client.updateQueue(found.setStatus(EntityStatus.ACTIVE).setForwardTo(target));
        assertTrue(client.getQueue(name).getForwardTo().endsWith(target));
        client.deleteQueue(name);
        assertFalse(client.getQueueExists(name));
        assertThrows(ResourceNotFoundException.class, () -> client.getQueue(name));
        assertThrows(ResourceNotFoundException.class, () -> client.deleteQueue(name));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aTopicIsMadeUpdatedAndDeleted(boolean partitioned) { // P-01 P-32
        String name = newName("t");
        client.createTopic(name, new CreateTopicOptions()
            .setAutoDeleteOnIdle(Duration.ofHours(2))
            .setDefaultMessageTimeToLive(Duration.ofDays(3))
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(5))
            .setDuplicateDetectionRequired(true)
            .setMaxSizeInMegabytes(3072)
            .setOrderingSupported(!partitioned)
            .setPartitioningEnabled(partitioned)
            .setUserMetadata("m"));
        var topic = client.getTopic(name);
        assertEquals(name, topic.getName());
        assertEquals(Duration.ofHours(2), topic.getAutoDeleteOnIdle());
        assertEquals(Duration.ofDays(3), topic.getDefaultMessageTimeToLive());
        assertEquals(Duration.ofMinutes(5), topic.getDuplicateDetectionHistoryTimeWindow());
        assertTrue(topic.isDuplicateDetectionRequired());
        assertEquals(partitioned ? 16 * 3072 : 3072, topic.getMaxSizeInMegabytes());
        assertEquals(partitioned, topic.isPartitioningEnabled());
        assertEquals(!partitioned, topic.isOrderingSupported());
        client.updateTopic(topic.setDefaultMessageTimeToLive(Duration.ofDays(1)).setUserMetadata("changed"));
        assertEquals(Duration.ofDays(1), client.getTopic(name).getDefaultMessageTimeToLive());
        assertEquals("changed", client.getTopic(name).getUserMetadata());
        assertTrue(client.getTopicExists(name));
        client.deleteTopic(name);
        assertFalse(client.getTopicExists(name));
        assertThrows(ResourceNotFoundException.class, () -> client.getTopic(name));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void aSubscriptionIsMadeUpdatedAndDeleted(boolean partitioned) { // P-01 P-32
        String topic = newName("t");
        client.createTopic(topic, new CreateTopicOptions().setPartitioningEnabled(partitioned));
        client.createSubscription(topic, "s", new CreateSubscriptionOptions()
            .setAutoDeleteOnIdle(Duration.ofHours(2))
            .setBatchedOperationsEnabled(false)
            .setDeadLetteringOnMessageExpiration(true)
            .setEnableDeadLetteringOnFilterEvaluationExceptions(false)
            .setDefaultMessageTimeToLive(Duration.ofDays(3))
            .setLockDuration(Duration.ofSeconds(45))
            .setMaxDeliveryCount(7)
            .setSessionRequired(true)
            .setUserMetadata("m"));
        var subscription = client.getSubscription(topic, "s");
        assertEquals(List.of(topic, "s"), List.of(subscription.getTopicName(), subscription.getSubscriptionName()));
        assertEquals(Duration.ofHours(2), subscription.getAutoDeleteOnIdle());
        assertFalse(subscription.isBatchedOperationsEnabled());
        assertTrue(subscription.isDeadLetteringOnMessageExpiration());
        assertFalse(subscription.isDeadLetteringOnFilterEvaluationExceptions());
        assertEquals(Duration.ofDays(3), subscription.getDefaultMessageTimeToLive());
        assertEquals(Duration.ofSeconds(45), subscription.getLockDuration());
        assertEquals(7, subscription.getMaxDeliveryCount());
        assertTrue(subscription.isSessionRequired());
        client.updateSubscription(subscription.setMaxDeliveryCount(2).setStatus(EntityStatus.RECEIVE_DISABLED));
        assertEquals(2, client.getSubscription(topic, "s").getMaxDeliveryCount());
        assertEquals(EntityStatus.RECEIVE_DISABLED, client.getSubscription(topic, "s").getStatus());
        assertTrue(client.getSubscriptionExists(topic, "s"));
        client.deleteSubscription(topic, "s");
        assertFalse(client.getSubscriptionExists(topic, "s"));
        assertThrows(ResourceNotFoundException.class, () -> client.getSubscription(topic, "s"));
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void rulesOfEveryKindAreMadeUpdatedAndDeleted(boolean partitioned) { // P-01
        String topic = newName("t");
        client.createTopic(topic, new CreateTopicOptions().setPartitioningEnabled(partitioned));
        var red = new CreateRuleOptions(new SqlRuleFilter("colour = 'red' AND size > 3"));
        client.createSubscription(topic, "s", "red", new CreateSubscriptionOptions(),
            red.setAction(new SqlRuleAction("SET painted = TRUE")));
        var correlation = new CorrelationRuleFilter().setLabel("l").setCorrelationId("c").setMessageId("m")
            .setContentType("t").setReplyTo("r").setReplyToSessionId("rs").setSessionId("s").setTo("to");
        // This client makes strings of all values; over AMQP they keep their types.
        correlation.getProperties().put("text", "five");
        client.createRule(topic, "correlated", "s", new CreateRuleOptions(correlation));
        client.createRule(topic, "all", "s", new CreateRuleOptions(new TrueRuleFilter()));
        client.createRule(topic, "none", "s", new CreateRuleOptions(new FalseRuleFilter()));
        assertEquals(Set.of("red", "correlated", "all", "none"), names(client.listRules(topic, "s"), r -> r.getName()));
        var found = client.getRule(topic, "s", "red");
        assertEquals("colour = 'red' AND size > 3", ((SqlRuleFilter) found.getFilter()).getSqlExpression());
        assertEquals("SET painted = TRUE", ((SqlRuleAction) found.getAction()).getSqlExpression());
        var correlated = (CorrelationRuleFilter) client.getRule(topic, "s", "correlated").getFilter();
        assertEquals(correlation, correlated);
        assertTrue(client.getRule(topic, "s", "all").getFilter() instanceof TrueRuleFilter);
        assertTrue(client.getRule(topic, "s", "none").getFilter() instanceof FalseRuleFilter);
        client.updateRule(topic, "s", found.setFilter(new SqlRuleFilter("colour = 'blue'")));
        var blue = (SqlRuleFilter) client.getRule(topic, "s", "red").getFilter();
        assertEquals("colour = 'blue'", blue.getSqlExpression());
        client.deleteRule(topic, "s", "red");
        assertThrows(ResourceNotFoundException.class, () -> client.getRule(topic, "s", "red"));
        assertThrows(HttpResponseException.class,
            () -> client.createRule(topic, "bad", "s", new CreateRuleOptions(new SqlRuleFilter("a = = b"))));
    }

    @Test
    void authorizationRulesBelongToTheirEntity() { // P-01
        var rule = new SharedAccessAuthorizationRule("Reader", "a-primary-key-of-its-own", "a-second-key-of-its-own",
            List.of(AccessRights.LISTEN, AccessRights.SEND));
        String name = newName("q");
        var options = new CreateQueueOptions();
        options.getAuthorizationRules().add(rule);
        client.createQueue(name, options);
        var kept = client.getQueue(name).getAuthorizationRules();
        assertEquals(1, kept.size());
        assertEquals("Reader", kept.get(0).getKeyName());
        assertEquals("a-primary-key-of-its-own", kept.get(0).getPrimaryKey());
        assertEquals("a-second-key-of-its-own", kept.get(0).getSecondaryKey());
        assertEquals(Set.of(AccessRights.LISTEN, AccessRights.SEND), Set.copyOf(kept.get(0).getAccessRights()));
        String topic = newName("t");
        var topicOptions = new CreateTopicOptions();
        topicOptions.getAuthorizationRules().add(rule);
        client.createTopic(topic, topicOptions);
        assertEquals("Reader", client.getTopic(topic).getAuthorizationRules().get(0).getKeyName());
    }

    @ParameterizedTest
    @ValueSource(booleans = {false, true})
    void countsAreAddedUp(boolean partitioned) throws Exception { // P-33
        String queue = newName("q");
        String topic = newName("t");
        client.createQueue(queue, new CreateQueueOptions().setPartitioningEnabled(partitioned));
        client.createTopic(topic, new CreateTopicOptions().setPartitioningEnabled(partitioned));
        client.createSubscription(topic, "s");
        client.createSubscription(topic, "none", "never", new CreateSubscriptionOptions(),
            new CreateRuleOptions(new FalseRuleFilter()));
        var later = OffsetDateTime.now().plusHours(1);
        try (var table = new Table(Broker.STANDARD.builder())) {
            var sender = table.sender(queue);
            for (var number : IntStream.range(0, 5).toArray()) {
                sender.sendMessage(new ServiceBusMessage("" + number));
            }
            sender.scheduleMessage(new ServiceBusMessage("later"), later);
            var receiver = table.receiver(queue);
            receiver.deadLetter(Table.receive(receiver));
            table.topicSender(topic).sendMessage(new ServiceBusMessage("news"));
            table.topicSender(topic).scheduleMessage(new ServiceBusMessage("later"), later);
        }
        var counted = client.getQueueRuntimeProperties(queue);
        assertEquals(4, counted.getActiveMessageCount());
        assertEquals(1, counted.getDeadLetterMessageCount());
        assertEquals(1, counted.getScheduledMessageCount());
        assertEquals(6, counted.getTotalMessageCount());
        assertEquals(0, counted.getTransferMessageCount() + counted.getTransferDeadLetterMessageCount());
        assertTrue(counted.getSizeInBytes() > 0);
        assertFalse(counted.getCreatedAt().isAfter(counted.getUpdatedAt()));
        assertFalse(counted.getCreatedAt().isAfter(counted.getAccessedAt()));
        var published = client.getTopicRuntimeProperties(topic);
        assertEquals(2, published.getSubscriptionCount());
        assertEquals(1, published.getScheduledMessageCount());
        assertEquals(1, client.getSubscriptionRuntimeProperties(topic, "s").getActiveMessageCount());
        assertEquals(0, client.getSubscriptionRuntimeProperties(topic, "none").getTotalMessageCount());
    }

    @Test
    void listsHaveAllPages() { // P-01
        // A page has a hundred.
        var queues = IntStream.range(0, 103).mapToObj(number -> newName("many")).collect(Collectors.toSet());
        queues.forEach(client::createQueue);
        assertTrue(names(client.listQueues(), queue -> queue.getName()).containsAll(queues));
        queues.forEach(client::deleteQueue);
        String topic = newName("t");
        client.createTopic(topic);
        var subscriptions = IntStream.range(0, 103).mapToObj(number -> "s" + number).collect(Collectors.toSet());
        subscriptions.forEach(subscription -> client.createSubscription(topic, subscription));
        assertEquals(subscriptions, names(client.listSubscriptions(topic), found -> found.getSubscriptionName()));
        assertTrue(names(client.listTopics(), found -> found.getName()).contains(topic));
        client.deleteTopic(topic);
    }

    private static <T> Set<String> names(PagedIterable<T> listed, Function<T, String> name) {
        return listed.stream().map(name).collect(Collectors.toSet());
    }

    @Test
    void refusalsHaveTheirOwnExceptions() { // P-07
        String name = newName("q");
        client.createQueue(name);
        assertThrows(ResourceExistsException.class, () -> client.createQueue(name));
        assertThrows(ResourceExistsException.class, () -> client.createTopic(name));
        var brief = new CreateQueueOptions().setLockDuration(Duration.ofMinutes(6));
        var refused = assertThrows(HttpResponseException.class, () -> client.createQueue(newName("q"), brief));
        assertEquals(400, refused.getResponse().getStatusCode());
        assertThrows(ResourceNotFoundException.class, () -> client.createSubscription("nowhere", "s"));
        String topic = newName("t");
        client.createTopic(topic);
        assertThrows(ResourceNotFoundException.class, () -> client.getSubscription(topic, "nowhere"));
        var stranger = new Broker(Broker.STANDARD.connectionString().replaceFirst("SharedAccessKey=[^;]+", "SharedAccessKey=no"));
        assertThrows(HttpResponseException.class, () -> stranger.administration().createQueue(newName("q")));
    }
}
