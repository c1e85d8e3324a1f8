using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading.Tasks;
using Azure;
using Azure.Messaging.ServiceBus;
using Azure.Messaging.ServiceBus.Administration;

namespace Bendybus.Interop
{
    /// <summary>ServiceBusAdministrationClient.</summary>
    public static class Administration
    {
        [Check]
        public static async Task A_queue_is_created_updated_listed_and_deleted(Stand stand)
        {
            var admin = stand.Administration;
            var destination = await stand.NewQueue();
            var wanted = new CreateQueueOptions(Stand.NewName())
            {
                EnablePartitioning = stand.Partitioned,
                LockDuration = TimeSpan.FromSeconds(45),
                MaxSizeInMegabytes = 2048,
                RequiresDuplicateDetection = true,
                DuplicateDetectionHistoryTimeWindow = TimeSpan.FromMinutes(5),
                RequiresSession = true,
                DefaultMessageTimeToLive = TimeSpan.FromDays(3),
                AutoDeleteOnIdle = TimeSpan.FromHours(2),
                DeadLetteringOnMessageExpiration = true,
                MaxDeliveryCount = 7,
                EnableBatchedOperations = false,
                ForwardDeadLetteredMessagesTo = destination,
                UserMetadata = "some text",
            };
            wanted.AuthorizationRules.Add(
                new SharedAccessAuthorizationRule("sender", new[] { AccessRights.Send }));
            QueueProperties created = await admin.CreateQueueAsync(wanted);
            QueueProperties shown = await admin.GetQueueAsync(wanted.Name);
            Expect.Equal(created, shown);
            Expect.Equal(stand.Partitioned, shown.EnablePartitioning);
            Expect.Equal(TimeSpan.FromSeconds(45), shown.LockDuration);
            Expect.Equal(TimeSpan.FromMinutes(5), shown.DuplicateDetectionHistoryTimeWindow);
            Expect.Equal(TimeSpan.FromDays(3), shown.DefaultMessageTimeToLive);
            Expect.Equal(TimeSpan.FromHours(2), shown.AutoDeleteOnIdle);
            Expect.True(shown.RequiresSession && shown.RequiresDuplicateDetection, "sessions and duplicate detection");
            Expect.True(shown.DeadLetteringOnMessageExpiration && !shown.EnableBatchedOperations, "switches");
            Expect.Equal(7, shown.MaxDeliveryCount);
            Expect.Equal("some text", shown.UserMetadata);
            Expect.True(shown.ForwardDeadLetteredMessagesTo.EndsWith(destination), shown.ForwardDeadLetteredMessagesTo);
            Expect.Equal(new[] { "sender" }, shown.AuthorizationRules.Select(rule => rule.KeyName));
            shown.MaxDeliveryCount = 8;
            shown.LockDuration = TimeSpan.FromSeconds(20);
            shown.Status = EntityStatus.SendDisabled;
            QueueProperties updated = await admin.UpdateQueueAsync(shown);
            Expect.Equal(8, updated.MaxDeliveryCount);
            Expect.Equal(TimeSpan.FromSeconds(20), updated.LockDuration);
            Expect.Equal(EntityStatus.SendDisabled, updated.Status);
            Expect.True((await Listed(admin.GetQueuesAsync())).Any(queue => queue.Name == wanted.Name), "it is listed");
            Expect.Equal(true, (await admin.QueueExistsAsync(wanted.Name)).Value);
            await admin.DeleteQueueAsync(wanted.Name);
            Expect.Equal(false, (await admin.QueueExistsAsync(wanted.Name)).Value);
        }

        [Check]
        public static async Task A_topic_is_created_updated_listed_and_deleted(Stand stand)
        {
            var admin = stand.Administration;
            var wanted = new CreateTopicOptions(Stand.NewName())
            {
                EnablePartitioning = stand.Partitioned,
                DefaultMessageTimeToLive = TimeSpan.FromDays(2),
                RequiresDuplicateDetection = true,
                MaxSizeInMegabytes = 2048,
                UserMetadata = "topic",
            };
            TopicProperties created = await admin.CreateTopicAsync(wanted);
            TopicProperties shown = await admin.GetTopicAsync(wanted.Name);
            Expect.Equal(created, shown);
            Expect.Equal(stand.Partitioned, shown.EnablePartitioning);
            shown.DefaultMessageTimeToLive = TimeSpan.FromDays(1);
            TopicProperties updated = await admin.UpdateTopicAsync(shown);
            Expect.Equal(TimeSpan.FromDays(1), updated.DefaultMessageTimeToLive);
            Expect.True((await Listed(admin.GetTopicsAsync())).Any(topic => topic.Name == wanted.Name), "it is listed");
            await admin.DeleteTopicAsync(wanted.Name);
            Expect.Equal(false, (await admin.TopicExistsAsync(wanted.Name)).Value);
        }

        [Check]
        public static async Task A_subscription_is_created_updated_listed_and_deleted(Stand stand)
        {
            var admin = stand.Administration;
            var topic = await stand.NewTopic();
            var wanted = new CreateSubscriptionOptions(topic, "s")
            {
                RequiresSession = true,
                LockDuration = TimeSpan.FromSeconds(30),
                DeadLetteringOnMessageExpiration = true,
                EnableDeadLetteringOnFilterEvaluationExceptions = false,
                MaxDeliveryCount = 3,
                UserMetadata = "subscription",
            };
            SubscriptionProperties created = await admin.CreateSubscriptionAsync(wanted);
            SubscriptionProperties shown = await admin.GetSubscriptionAsync(topic, "s");
            Expect.Equal(created, shown);
            Expect.True(shown.RequiresSession && !shown.EnableDeadLetteringOnFilterEvaluationExceptions, "switches");
            shown.MaxDeliveryCount = 4;
            SubscriptionProperties updated = await admin.UpdateSubscriptionAsync(shown);
            Expect.Equal(4, updated.MaxDeliveryCount);
            var listed = await Listed(admin.GetSubscriptionsAsync(topic));
            Expect.Equal(new[] { "s" }, listed.Select(subscription => subscription.SubscriptionName));
            await admin.DeleteSubscriptionAsync(topic, "s");
            Expect.Equal(false, (await admin.SubscriptionExistsAsync(topic, "s")).Value);
        }

        [Check]
        public static async Task A_rule_is_created_updated_listed_and_deleted(Stand stand)
        {
            var admin = stand.Administration;
            var topic = await stand.NewTopic("s");
            await admin.CreateRuleAsync(topic, "s", new CreateRuleOptions("r", new SqlRuleFilter("a = 1")));
            RuleProperties shown = await admin.GetRuleAsync(topic, "s", "r");
            Expect.Equal("a = 1", ((SqlRuleFilter)shown.Filter).SqlExpression);
            shown.Filter = new CorrelationRuleFilter("correlation") { Subject = "subject" };
            shown.Action = new SqlRuleAction("SET b = 2");
            await admin.UpdateRuleAsync(topic, "s", shown);
            RuleProperties updated = await admin.GetRuleAsync(topic, "s", "r");
            Expect.Equal("subject", ((CorrelationRuleFilter)updated.Filter).Subject);
            Expect.Equal("SET b = 2", ((SqlRuleAction)updated.Action).SqlExpression);
            var listed = await Listed(admin.GetRulesAsync(topic, "s"));
            Expect.Equal(new[] { "$Default", "r" }, listed.Select(rule => rule.Name).OrderBy(name => name));
            await admin.DeleteRuleAsync(topic, "s", "r");
            Expect.Equal(false, (await admin.RuleExistsAsync(topic, "s", "r")).Value);
        }

        [Check]
        public static async Task Counts_are_added_up_over_the_partitions(Stand stand) // P-33
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, Enumerable.Range(0, 9).Select(n => Transactions.Keyed($"{n}", $"{n}")).ToArray());
            var later = DateTimeOffset.UtcNow.AddHours(1);
            await stand.Client.CreateSender(queue).ScheduleMessageAsync(new ServiceBusMessage("later"), later);
            var receiver = stand.Client.CreateReceiver(queue);
            await receiver.DeadLetterMessageAsync(await Stand.ReceiveOne(receiver));
            QueueRuntimeProperties counted = await stand.Administration.GetQueueRuntimePropertiesAsync(queue);
            Expect.Equal(8L, counted.ActiveMessageCount);
            Expect.Equal(1L, counted.ScheduledMessageCount);
            Expect.Equal(1L, counted.DeadLetterMessageCount);
            Expect.Equal(10L, counted.TotalMessageCount);
            Expect.True(counted.SizeInBytes > 0, "the size is known");
            Expect.True(counted.CreatedAt > DateTimeOffset.UtcNow.AddHours(-1), "the time of creation is known");
        }

        [Check]
        public static async Task Counts_of_topics_and_subscriptions(Stand stand)
        {
            var topic = await stand.NewTopic("one", "two");
            await stand.Send(topic, new ServiceBusMessage("a"));
            TopicRuntimeProperties ofTopic = await stand.Administration.GetTopicRuntimePropertiesAsync(topic);
            Expect.Equal(2, ofTopic.SubscriptionCount);
            SubscriptionRuntimeProperties counted =
                await stand.Administration.GetSubscriptionRuntimePropertiesAsync(topic, "one");
            Expect.Equal(1L, counted.ActiveMessageCount);
        }

        [Check]
        public static async Task The_number_of_deliveries_may_be_unlimited(Stand stand)
        {
            var queue = await stand.NewQueue(options => options.MaxDeliveryCount = int.MaxValue);
            QueueProperties ofQueue = await stand.Administration.GetQueueAsync(queue);
            Expect.Equal(int.MaxValue, ofQueue.MaxDeliveryCount);
            var topic = await stand.NewTopic();
            var options = new CreateSubscriptionOptions(topic, "s") { MaxDeliveryCount = int.MaxValue };
            SubscriptionProperties ofSubscription = await stand.Administration.CreateSubscriptionAsync(options);
            Expect.Equal(int.MaxValue, ofSubscription.MaxDeliveryCount);
        }

        [Check]
        public static async Task An_entity_that_forwards_is_never_deleted_for_idleness(Stand stand)
        {
            var destination = await stand.NewQueue();
            var queue = await stand.NewQueue(options =>
            {
                options.ForwardTo = destination;
                options.AutoDeleteOnIdle = TimeSpan.FromMinutes(5);
            });
            QueueProperties shown = await stand.Administration.GetQueueAsync(queue);
            Expect.Equal(TimeSpan.MaxValue, shown.AutoDeleteOnIdle);
        }

        [Check]
        public static async Task Defaults_are_those_of_the_service(Stand stand)
        {
            QueueProperties queue = await stand.Administration.GetQueueAsync(await stand.NewQueue());
            Expect.Equal(TimeSpan.FromMinutes(1), queue.LockDuration);
            Expect.Equal(10, queue.MaxDeliveryCount);
            Expect.Equal(TimeSpan.MaxValue, queue.DefaultMessageTimeToLive);
            Expect.Equal(TimeSpan.MaxValue, queue.AutoDeleteOnIdle);
            Expect.Equal(EntityStatus.Active, queue.Status);
            Expect.True(queue.EnableBatchedOperations && !queue.RequiresSession, "switches");
        }

        [Check]
        public static async Task What_is_there_is_not_created_again(Stand stand)
        {
            var queue = await stand.NewQueue();
            var same = new CreateQueueOptions(queue) { EnablePartitioning = stand.Partitioned };
            await Expect.Fails(
                ServiceBusFailureReason.MessagingEntityAlreadyExists,
                () => stand.Administration.CreateQueueAsync(same));
            await Expect.Fails(
                ServiceBusFailureReason.MessagingEntityNotFound,
                () => stand.Administration.GetQueueAsync(Stand.NewName()));
            await Expect.Fails(
                ServiceBusFailureReason.MessagingEntityNotFound,
                () => stand.Administration.DeleteTopicAsync(Stand.NewName()));
        }

        [Check]
        public static async Task Refusals_begin_with_the_sentences_of_the_service(Stand stand)
        {
            var queue = await stand.NewQueue();
            var same = new CreateQueueOptions(queue) { EnablePartitioning = stand.Partitioned };
            Exception refused = await Expect.Fails(
                ServiceBusFailureReason.MessagingEntityAlreadyExists,
                () => stand.Administration.CreateQueueAsync(same));
            Expect.True(refused.Message.StartsWith("SubCode=40900. Conflict. You're requesting"), refused.Message);
            var options = new CreateQueueOptions(Stand.NewName()) { LockDuration = TimeSpan.FromDays(25) };
            refused = await Expect.Throws<ArgumentException>(() => stand.Administration.CreateQueueAsync(options));
            Expect.True(
                refused.Message.StartsWith("SubCode=40000. The supplied lock time exceeds the allowed maximum of '5'"),
                refused.Message);
        }

        [Check]
        public static async Task An_answer_has_the_time_of_the_last_update_as_its_tag(Stand stand)
        {
            var queue = await stand.NewQueue();
            var answer = await stand.Administration.GetQueueRuntimePropertiesAsync(queue);
            Expect.True(answer.GetRawResponse().Headers.TryGetValue("ETag", out var tag), "there is a tag");
            Expect.Equal(answer.Value.UpdatedAt.UtcTicks.ToString(), tag);
        }

        [Check]
        public static async Task A_disabled_queue_says_so(Stand stand)
        {
            var queue = await stand.NewQueue(options => options.Status = EntityStatus.Disabled);
            await Expect.Fails(
                ServiceBusFailureReason.MessagingEntityDisabled,
                () => stand.Send(queue, new ServiceBusMessage("a")));
        }

        [Check]
        public static async Task The_namespace_tells_its_tier(Stand stand)
        {
            NamespaceProperties properties = await stand.Administration.GetNamespacePropertiesAsync();
            var tier = stand.Partitions == 2 ? MessagingSku.Premium : MessagingSku.Standard;
            Expect.Equal(tier, properties.MessagingSku);
        }

        private static async Task<List<T>> Listed<T>(AsyncPageable<T> pages)
        {
            var all = new List<T>();
            await foreach (var each in pages)
            {
                all.Add(each);
            }
            return all;
        }
    }
}
