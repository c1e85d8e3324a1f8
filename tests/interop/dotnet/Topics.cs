using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading.Tasks;
using Azure.Messaging.ServiceBus;
using Azure.Messaging.ServiceBus.Administration;

namespace Bendybus.Interop
{
    /// <summary>Topics, subscriptions and the rules between them.</summary>
    public static class Topics
    {
        [Check]
        public static async Task Every_subscription_gets_its_copy(Stand stand)
        {
            var topic = await stand.NewTopic("one", "two");
            await stand.Send(topic, new ServiceBusMessage("a"));
            foreach (var subscription in new[] { "one", "two" })
            {
                var receiver = stand.Client.CreateReceiver(topic, subscription);
                var message = await Stand.ReceiveOne(receiver);
                Expect.Equal("a", message.Body.ToString());
                await receiver.CompleteMessageAsync(message);
            }
        }

        [Check]
        public static async Task A_scheduled_message_is_published_when_it_is_due(Stand stand)
        {
            var topic = await stand.NewTopic("s");
            var sender = stand.Client.CreateSender(topic);
            var late = await sender.ScheduleMessageAsync(new ServiceBusMessage("x"), DateTimeOffset.UtcNow.AddHours(1));
            await sender.CancelScheduledMessageAsync(late);
            await sender.ScheduleMessageAsync(new ServiceBusMessage("a"), DateTimeOffset.UtcNow.AddMilliseconds(300));
            var message = await Stand.ReceiveOne(stand.Client.CreateReceiver(topic, "s"));
            Expect.Equal("a", message.Body.ToString());
        }

        [Check]
        public static async Task A_subscription_has_dead_letters_of_its_own(Stand stand)
        {
            var topic = await stand.NewTopic("one", "two");
            await stand.Send(topic, new ServiceBusMessage("a"));
            var receiver = stand.Client.CreateReceiver(topic, "one");
            await receiver.DeadLetterMessageAsync(await Stand.ReceiveOne(receiver), "reason");
            var options = new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter };
            var dead = await Stand.ReceiveOne(stand.Client.CreateReceiver(topic, "one", options));
            Expect.Equal("reason", dead.DeadLetterReason);
            Expect.Equal(null, await stand.Client.CreateReceiver(topic, "two", options).PeekMessageAsync());
        }

        [Check]
        public static async Task The_rule_manager_creates_lists_and_deletes_rules(Stand stand) // P-24, P-35
        {
            var topic = await stand.NewTopic("s");
            await using var rules = stand.Client.CreateRuleManager(topic, "s");
            await rules.DeleteRuleAsync(RuleProperties.DefaultRuleName);
            await rules.CreateRuleAsync("by-colour", new CorrelationRuleFilter
            {
                Subject = "painted",
                ApplicationProperties = { ["colour"] = "red" },
            });
            await rules.CreateRuleAsync(new CreateRuleOptions
            {
                Name = "by-size",
                Filter = new SqlRuleFilter("size > 10"),
                Action = new SqlRuleAction("SET large = TRUE"),
            });
            var names = new List<string>();
            await foreach (var rule in rules.GetRulesAsync())
            {
                names.Add(rule.Name);
            }
            Expect.Equal(new[] { "by-colour", "by-size" }, names.OrderBy(name => name));
            await stand.Send(
                topic,
                Message("red", ("colour", "red")),
                Message("blue", ("colour", "blue")),
                Message("large", ("size", 11)),
                Message("small", ("size", 9)));
            var messages = await Stand.Receive(stand.Client.CreateReceiver(topic, "s"), 2);
            var found = messages.ToDictionary(message => message.Body.ToString());
            Expect.Equal(new[] { "large", "red" }, found.Keys.OrderBy(body => body));
            Expect.Equal(true, found["large"].ApplicationProperties["large"]);
            await rules.DeleteRuleAsync("by-size");
            await Expect.Fails(
                ServiceBusFailureReason.MessagingEntityNotFound, () => rules.DeleteRuleAsync("by-size"));
        }

        [Check]
        public static async Task A_rule_that_is_there_is_not_created_again(Stand stand)
        {
            var topic = await stand.NewTopic("s");
            await using var rules = stand.Client.CreateRuleManager(topic, "s");
            await Expect.Fails(
                ServiceBusFailureReason.MessagingEntityAlreadyExists,
                () => rules.CreateRuleAsync(RuleProperties.DefaultRuleName, new TrueRuleFilter()));
        }

        [Check]
        public static async Task The_rule_manager_shows_parameters_as_they_were_given(Stand stand)
        {
            var topic = await stand.NewTopic("s");
            await using var rules = stand.Client.CreateRuleManager(topic, "s");
            await rules.CreateRuleAsync("r", new CorrelationRuleFilter { ApplicationProperties = { ["n"] = 3L } });
            await foreach (var rule in rules.GetRulesAsync())
            {
                if (rule.Name == "r")
                {
                    var filter = (CorrelationRuleFilter)rule.Filter;
                    Expect.Equal(3L, filter.ApplicationProperties["n"]);
                }
            }
        }

        [Check]
        public static async Task Values_in_rules_come_back_as_they_were_given(Stand stand)
        {
            var values = new object[]
            {
                3, 3L, true, 1.5, "text",
                new DateTime(2031, 2, 3, 4, 5, 6, DateTimeKind.Utc).AddTicks(1234567),
                TimeSpan.FromTicks(12345678),
            };
            var topic = await stand.NewTopic("s");
            var number = 0;
            foreach (var value in values)
            {
                var filter = new SqlRuleFilter("n = @p") { Parameters = { ["@p"] = value } };
                var correlation = new CorrelationRuleFilter { ApplicationProperties = { ["p"] = value } };
                var first = await AddRule(stand, topic, $"sql-{++number}", filter);
                var second = await AddRule(stand, topic, $"correlation-{number}", correlation);
                Expect.Equal(value, ((SqlRuleFilter)first).Parameters["@p"]);
                Expect.Equal(value, ((CorrelationRuleFilter)second).ApplicationProperties["p"]);
            }
        }

        [Check]
        public static async Task A_time_without_a_zone_is_given_back_without_one(Stand stand)
        {
            var topic = await stand.NewTopic("s");
            var time = new DateTime(2031, 2, 3, 4, 5, 6, DateTimeKind.Unspecified);
            await AddRule(stand, topic, "r", new SqlRuleFilter("n = @p") { Parameters = { ["@p"] = time } });
            var answer = (await stand.Administration.GetRuleAsync(topic, "s", "r")).GetRawResponse();
            // The SDK itself takes such a time for one in UTC.
            Expect.True(answer.Content.ToString().Contains(">2031-02-03T04:05:06<"), "the zone is left open");
        }

        [Check]
        public static async Task A_filter_that_is_always_true_stays_as_it_was_written(Stand stand)
        {
            var topic = await stand.NewTopic("s");
            var filter = await AddRule(stand, topic, "r", new SqlRuleFilter("1 = 1") { Parameters = { ["@p"] = 1 } });
            Expect.Equal(typeof(SqlRuleFilter), filter.GetType());
            Expect.Equal("1 = 1", ((SqlRuleFilter)filter).SqlExpression);
            Expect.Equal(1, ((SqlRuleFilter)filter).Parameters["@p"]);
        }

        [Check]
        public static async Task A_filter_sees_system_properties(Stand stand)
        {
            var topic = await stand.NewTopic();
            await stand.Administration.CreateSubscriptionAsync(
                new CreateSubscriptionOptions(topic, "s"),
                new CreateRuleOptions("r", new SqlRuleFilter("sys.Label = 'yes' AND sys.CorrelationId IS NOT NULL")));
            await stand.Send(
                topic,
                new ServiceBusMessage("no") { Subject = "yes" },
                new ServiceBusMessage("yes") { Subject = "yes", CorrelationId = "c" });
            var message = await Stand.ReceiveOne(stand.Client.CreateReceiver(topic, "s"));
            Expect.Equal("yes", message.Body.ToString());
        }

        private static async Task<RuleFilter> AddRule(Stand stand, string topic, string name, RuleFilter filter)
        {
            await stand.Administration.CreateRuleAsync(topic, "s", new CreateRuleOptions(name, filter));
            RuleProperties rule = await stand.Administration.GetRuleAsync(topic, "s", name);
            return rule.Filter;
        }

        private static ServiceBusMessage Message(string body, (string Name, object Value) property) =>
            new ServiceBusMessage(body)
            {
                Subject = "painted",
                ApplicationProperties = { [property.Name] = property.Value },
            };
    }
}
