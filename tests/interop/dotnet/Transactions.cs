using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading.Tasks;
using System.Transactions;
using Azure.Messaging.ServiceBus;

namespace Bendybus.Interop
{
    /// <summary>TransactionScope at one entity.</summary>
    public static class Transactions
    {
        public static TransactionScope NewScope() => new TransactionScope(TransactionScopeAsyncFlowOption.Enabled);

        /// <summary>
        /// The SDK sends a rollback and waits for nothing. If the next transaction is declared in that moment, it now
        /// and then takes the answer to the one for the answer to the other.
        /// </summary>
        private static Task AfterRollback() => Task.Delay(200);

        [Check]
        public static async Task Sends_appear_together_at_the_commit(Stand stand) // P-23
        {
            var queue = await stand.NewQueue();
            using (var scope = NewScope())
            {
                await stand.Send(queue, Keyed("a"), Keyed("b"));
                Expect.Equal(Array.Empty<string>(), await Bodies(stand, queue));
                scope.Complete();
            }
            await Holds(stand, queue, "a", "b");
        }

        [Check]
        public static async Task Sends_that_are_rolled_back_leave_nothing(Stand stand) // P-23
        {
            var queue = await stand.NewQueue();
            using (NewScope())
            {
                await stand.Send(queue, Keyed("never"));
            }
            await stand.Send(queue, Keyed("after"));
            await Holds(stand, queue, "after");
        }

        [Check]
        public static async Task A_batch_is_sent_in_a_transaction(Stand stand)
        {
            var queue = await stand.NewQueue();
            var sender = stand.Client.CreateSender(queue);
            using (var scope = NewScope())
            {
                await sender.SendMessagesAsync(new[] { Keyed("a"), Keyed("b") });
                using var batch = await sender.CreateMessageBatchAsync();
                Expect.True(batch.TryAddMessage(Keyed("c")), "there is room in the batch");
                await sender.SendMessagesAsync(batch);
                scope.Complete();
            }
            await Holds(stand, queue, "a", "b", "c");
        }

        [Check]
        public static async Task A_message_is_completed_together_with_a_send(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, Keyed("question"));
            var receiver = stand.Client.CreateReceiver(queue);
            var message = await Stand.ReceiveOne(receiver);
            using (var scope = NewScope())
            {
                await receiver.CompleteMessageAsync(message);
                await stand.Send(queue, Keyed("answer"));
                scope.Complete();
            }
            await Holds(stand, queue, "answer");
        }

        [Check]
        public static async Task Every_settlement_takes_effect_at_the_commit(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, Keyed("complete"), Keyed("abandon"), Keyed("defer"), Keyed("dead-letter"));
            var receiver = stand.Client.CreateReceiver(queue);
            var messages = (await Stand.Receive(receiver, 4)).ToDictionary(message => message.Body.ToString());
            using (var scope = NewScope())
            {
                await receiver.CompleteMessageAsync(messages["complete"]);
                await receiver.AbandonMessageAsync(messages["abandon"]);
                await receiver.DeferMessageAsync(messages["defer"]);
                await receiver.DeadLetterMessageAsync(messages["dead-letter"], "reason");
                scope.Complete();
            }
            await Holds(stand, queue, "abandon", "defer");
            Expect.Equal("abandon", (await Stand.ReceiveOne(receiver)).Body.ToString());
            await receiver.CompleteMessageAsync(
                await receiver.ReceiveDeferredMessageAsync(messages["defer"].SequenceNumber));
            var options = new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter };
            var dead = await Stand.ReceiveOne(stand.Client.CreateReceiver(queue, options));
            Expect.Equal("reason", dead.DeadLetterReason);
        }

        [Check]
        public static async Task After_a_rollback_a_message_is_settled_in_any_way(Stand stand)
        {
            var queue = await stand.NewQueue();
            var receiver = stand.Client.CreateReceiver(queue);
            var settlements = new List<Func<ServiceBusReceivedMessage, Task>>
            {
                message => receiver.AbandonMessageAsync(message),
                message => receiver.DeferMessageAsync(message),
                message => receiver.DeadLetterMessageAsync(message),
                message => receiver.CompleteMessageAsync(message),
            };
            foreach (var settle in settlements)
            {
                await stand.Send(queue, Keyed("a"));
                var message = await Stand.ReceiveOne(receiver);
                using (NewScope())
                {
                    await receiver.CompleteMessageAsync(message);
                }
                await AfterRollback();
                await settle(message);
                if (settle == settlements[0])
                {
                    await receiver.CompleteMessageAsync(await Stand.ReceiveOne(receiver));
                }
            }
            await Holds(stand, queue, "a"); // the one that is deferred
        }

        [Check]
        public static async Task After_a_rollback_a_session_goes_on(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            await stand.Send(queue, Of("s", "a"), Of("s", "b"));
            await using var receiver = await stand.Client.AcceptSessionAsync(queue, "s");
            var messages = await Stand.Receive(receiver, 2);
            using (NewScope())
            {
                await receiver.CompleteMessageAsync(messages[0]);
                await receiver.CompleteMessageAsync(messages[1]);
            }
            await receiver.CompleteMessageAsync(messages[0]);
            await receiver.AbandonMessageAsync(messages[1]);
            Expect.Equal("b", (await Stand.ReceiveOne(receiver)).Body.ToString());
        }

        [Check]
        public static async Task Scheduling_and_cancelling_take_effect_at_the_commit(Stand stand)
        {
            var queue = await stand.NewQueue();
            var sender = stand.Client.CreateSender(queue);
            var later = DateTimeOffset.UtcNow.AddHours(1);
            var number = await sender.ScheduleMessageAsync(Keyed("cancelled"), later);
            using (NewScope())
            {
                await sender.CancelScheduledMessageAsync(number);
            }
            await AfterRollback();
            await Holds(stand, queue, "cancelled");
            using (var scope = NewScope())
            {
                await sender.CancelScheduledMessageAsync(number);
                await sender.ScheduleMessageAsync(Keyed("scheduled"), later);
                scope.Complete();
            }
            await Holds(stand, queue, "scheduled");
        }

        [Check]
        public static async Task A_message_scheduled_for_now_is_enlisted(Stand stand)
        {
            var queue = await stand.NewQueue();
            var sender = stand.Client.CreateSender(queue);
            using (NewScope())
            {
                await sender.ScheduleMessageAsync(Keyed("never"), DateTimeOffset.UtcNow.AddMinutes(-1));
            }
            await AfterRollback();
            using (var scope = NewScope())
            {
                await sender.ScheduleMessageAsync(Keyed("a"), DateTimeOffset.UtcNow.AddMinutes(-1));
                Expect.Equal(Array.Empty<string>(), await Bodies(stand, queue));
                scope.Complete();
            }
            Expect.Equal("a", (await stand.ReceiveOne(queue)).Body.ToString());
        }

        [Check]
        public static async Task The_state_of_a_session_is_set_in_a_transaction(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            await stand.Send(queue, Of("s", "a"));
            await using var receiver = await stand.Client.AcceptSessionAsync(queue, "s");
            var message = await Stand.ReceiveOne(receiver);
            using (NewScope())
            {
                await receiver.SetSessionStateAsync(new BinaryData("never"));
            }
            Expect.Equal(null, await receiver.GetSessionStateAsync());
            await AfterRollback();
            using (var scope = NewScope())
            {
                await receiver.CompleteMessageAsync(message);
                await receiver.SetSessionStateAsync(new BinaryData("state"));
                scope.Complete();
            }
            await Stand.Until(
                async () => (await receiver.GetSessionStateAsync())?.ToString() == "state", "the state is set");
            await Holds(stand, queue);
        }

        [Check(16, 2)]
        public static async Task Without_a_key_a_send_to_partitions_is_refused(Stand stand) // P-19
        {
            var queue = await stand.NewQueue();
            using (NewScope())
            {
                await Expect.Throws<InvalidOperationException>(() => stand.Send(queue, new ServiceBusMessage("a")));
            }
            await Holds(stand, queue);
        }

        [Check]
        public static async Task Different_keys_are_refused_by_partitions_alone(Stand stand) // P-20
        {
            var queue = await stand.NewQueue();
            using (var scope = NewScope())
            {
                await stand.Send(queue, Keyed("a", "one"));
                if (stand.Partitioned)
                {
                    await Expect.Throws<InvalidOperationException>(() => stand.Send(queue, Keyed("b", "two")));
                    return;
                }
                await stand.Send(queue, Keyed("b", "two"));
                scope.Complete();
            }
            await Holds(stand, queue, "a", "b");
        }

        [Check]
        public static async Task Two_sessions_are_refused_by_partitions_alone(Stand stand) // P-21, P-22
        {
            var queue = await stand.NewSessionQueue();
            using (var scope = NewScope())
            {
                await stand.Send(queue, Of("one", "a"));
                if (stand.Partitioned)
                {
                    await Expect.Throws<InvalidOperationException>(() => stand.Send(queue, Of("two", "b")));
                    return;
                }
                await stand.Send(queue, Of("two", "b"));
                scope.Complete();
            }
            await Holds(stand, queue, "a", "b");
        }

        [Check]
        public static async Task A_topic_is_published_to_in_a_transaction(Stand stand)
        {
            var topic = await stand.NewTopic("s");
            using (NewScope())
            {
                await stand.Send(topic, Keyed("never"));
            }
            await AfterRollback();
            using (var scope = NewScope())
            {
                await stand.Send(topic, Keyed("a"), Keyed("b"));
                scope.Complete();
            }
            var messages = await Stand.Receive(stand.Client.CreateReceiver(topic, "s"), 2);
            Expect.Equal(new[] { "a", "b" }, messages.Select(message => message.Body.ToString()));
        }

        [Check]
        public static async Task Two_entities_are_not_joined_unless_asked_for(Stand stand)
        {
            var first = await stand.NewQueue();
            var second = await stand.NewQueue();
            using (NewScope())
            {
                await stand.Send(first, Keyed("a"));
                await Expect.Throws<Exception>(() => stand.Send(second, Keyed("b")));
            }
            await Holds(stand, first);
            await Holds(stand, second);
        }

        internal static ServiceBusMessage Keyed(string body, string key = "key") =>
            new ServiceBusMessage(body) { PartitionKey = key };

        internal static ServiceBusMessage Of(string session, string body) =>
            new ServiceBusMessage(body) { SessionId = session };

        /// <summary>In the end exactly this is in the queue: the SDK does not wait for a rollback.</summary>
        internal static async Task Holds(Stand stand, string queue, params string[] bodies)
        {
            var found = new List<string>();
            await Stand.Until(
                async () => (found = await Bodies(stand, queue)).SequenceEqual(bodies),
                $"{queue} holds [{string.Join(", ", bodies)}]");
        }

        /// <summary>What others see of a queue.</summary>
        private static async Task<List<string>> Bodies(Stand stand, string queue)
        {
            using var apart = new TransactionScope(
                TransactionScopeOption.Suppress, TransactionScopeAsyncFlowOption.Enabled);
            return await stand.Bodies(queue);
        }
    }
}
