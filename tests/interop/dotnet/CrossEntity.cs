using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading.Tasks;
using System.Transactions;
using Azure.Messaging.ServiceBus;

namespace Bendybus.Interop
{
    /// <summary>Transactions across entities: EnableCrossEntityTransactions, as NServiceBus uses them (P-37).</summary>
    public static class CrossEntity
    {
        [Check]
        public static async Task A_message_without_a_key_is_completed_together_with_sends(Stand stand)
        {
            var source = await stand.NewQueue();
            var left = await stand.NewQueue();
            var right = await stand.NewQueue();
            await stand.Send(source, new ServiceBusMessage("question"));
            var client = Crossing(stand);
            var receiver = client.CreateReceiver(source);
            var message = await Stand.ReceiveOne(receiver);
            using (var scope = Transactions.NewScope())
            {
                await receiver.CompleteMessageAsync(message);
                await Stand.Send(client, left, new ServiceBusMessage("a"), new ServiceBusMessage("b"));
                await Stand.Send(client, right, new ServiceBusMessage("c"));
                scope.Complete();
            }
            await Transactions.Holds(stand, left, "a", "b");
            await Transactions.Holds(stand, right, "c");
            await Transactions.Holds(stand, source);
        }

        [Check]
        public static async Task A_rollback_leaves_everything_as_it_was(Stand stand)
        {
            var source = await stand.NewQueue();
            var destination = await stand.NewQueue();
            await stand.Send(source, new ServiceBusMessage("question"));
            var client = Crossing(stand);
            var receiver = client.CreateReceiver(source);
            var message = await Stand.ReceiveOne(receiver);
            using (Transactions.NewScope())
            {
                await receiver.CompleteMessageAsync(message);
                await Stand.Send(client, destination, new ServiceBusMessage("never"));
            }
            await receiver.CompleteMessageAsync(message);
            await Transactions.Holds(stand, source);
            await Transactions.Holds(stand, destination);
        }

        [Check]
        public static async Task Messages_reach_other_entities_by_their_own_keys(Stand stand)
        {
            var source = await stand.NewQueue();
            var destination = await stand.NewQueue();
            await stand.Send(source, Transactions.Keyed("question", "own"));
            var client = Crossing(stand);
            var receiver = client.CreateReceiver(source);
            var message = await Stand.ReceiveOne(receiver);
            var keys = Enumerable.Range(0, 8).Select(number => $"key-{number}").ToArray();
            using (var scope = Transactions.NewScope())
            {
                await receiver.CompleteMessageAsync(message);
                await Stand.Send(client, destination, keys.Select(key => Transactions.Keyed("sent", key)).ToArray());
                scope.Complete();
            }
            await stand.Send(destination, keys.Select(key => Transactions.Keyed("direct", key)).ToArray());
            var messages = await Stand.Receive(stand.Client.CreateReceiver(destination), 16);
            foreach (var ofKey in messages.GroupBy(each => each.PartitionKey))
            {
                Expect.Equal(2, ofKey.Count());
                Expect.Equal(1, ofKey.Select(Stand.PartitionOf).Distinct().Count());
            }
        }

        [Check]
        public static async Task A_message_sent_back_without_a_key_stays_in_its_partition(Stand stand)
        {
            var source = await stand.NewQueue();
            await stand.Send(source, new ServiceBusMessage("question"));
            var client = Crossing(stand);
            var receiver = client.CreateReceiver(source);
            var message = await Stand.ReceiveOne(receiver);
            using (var scope = Transactions.NewScope())
            {
                await receiver.CompleteMessageAsync(message);
                await Stand.Send(client, source, new ServiceBusMessage("again"));
                scope.Complete();
            }
            var again = await Stand.ReceiveOne(receiver);
            Expect.Equal("again", again.Body.ToString());
            Expect.Equal(Stand.PartitionOf(message), Stand.PartitionOf(again));
        }

        [Check]
        public static async Task Batches_are_sent_across(Stand stand)
        {
            var source = await stand.NewQueue();
            var destination = await stand.NewQueue();
            await stand.Send(source, new ServiceBusMessage("question"));
            var client = Crossing(stand);
            var receiver = client.CreateReceiver(source);
            var message = await Stand.ReceiveOne(receiver);
            var sender = client.CreateSender(destination);
            using (var scope = Transactions.NewScope())
            {
                await receiver.CompleteMessageAsync(message);
                await sender.SendMessagesAsync(new[] { new ServiceBusMessage("a"), new ServiceBusMessage("b") });
                scope.Complete();
            }
            await Transactions.Holds(stand, destination, "a", "b");
            await Transactions.Holds(stand, source);
        }

        [Check(16, 2)]
        public static async Task A_via_key_of_another_partition_is_refused(Stand stand)
        {
            var source = await stand.NewQueue();
            var destination = await stand.NewQueue();
            var keys = await OnTwoPartitions(stand, source);
            await stand.Send(source, Transactions.Keyed("question", keys[0]));
            var client = Crossing(stand);
            var receiver = client.CreateReceiver(source);
            var message = await Stand.ReceiveOne(receiver);
            await Expect.Throws<Exception>(async () =>
            {
                using var scope = Transactions.NewScope();
                await receiver.CompleteMessageAsync(message);
                await Stand.Send(client, destination, Via(keys[1]));
                scope.Complete();
            });
            await Transactions.Holds(stand, destination);
            await Transactions.Holds(stand, source, "question");
        }

        [Check]
        public static async Task A_via_key_leads_messages_through_the_first_entity(Stand stand)
        {
            var first = await stand.NewQueue();
            var second = await stand.NewQueue();
            var client = Crossing(stand);
            var through = client.CreateSender(first);
            var onward = client.CreateSender(second);
            using (var scope = Transactions.NewScope())
            {
                await through.SendMessageAsync(Transactions.Keyed("a", "via"));
                await onward.SendMessageAsync(Via("via"));
                scope.Complete();
            }
            await Transactions.Holds(stand, first, "a");
            await Transactions.Holds(stand, second, "via");
        }

        [Check]
        public static async Task A_via_key_alone_is_the_key_of_a_message(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, Enumerable.Range(0, 12).Select(number => Via($"{number % 3}")).ToArray());
            var messages = await Stand.Receive(stand.Client.CreateReceiver(queue), 12);
            foreach (var ofKey in messages.GroupBy(message => message.TransactionPartitionKey))
            {
                Expect.Equal(4, ofKey.Count());
                Expect.Equal(1, ofKey.Select(Stand.PartitionOf).Distinct().Count());
            }
        }

        [Check]
        public static async Task A_session_is_answered_in_other_sessions(Stand stand)
        {
            var source = await stand.NewSessionQueue();
            var destination = await stand.NewSessionQueue();
            await stand.Send(source, Transactions.Of("s", "question"));
            var client = Crossing(stand);
            await using var receiver = await client.AcceptNextSessionAsync(source);
            var message = await Stand.ReceiveOne(receiver);
            using (var scope = Transactions.NewScope())
            {
                await receiver.CompleteMessageAsync(message);
                await receiver.SetSessionStateAsync(new BinaryData("answered"));
                await Stand.Send(client, destination, Transactions.Of("x", "a"), Transactions.Of("y", "b"));
                scope.Complete();
            }
            await Transactions.Holds(stand, destination, "a", "b");
            await Transactions.Holds(stand, source);
            Expect.Equal("answered", (await receiver.GetSessionStateAsync()).ToString());
        }

        [Check]
        public static async Task A_subscription_is_answered_through_a_topic(Stand stand)
        {
            var source = await stand.NewTopic("s");
            var destination = await stand.NewTopic("t");
            await stand.Send(source, new ServiceBusMessage("question"));
            var client = Crossing(stand);
            var receiver = client.CreateReceiver(source, "s");
            var message = await Stand.ReceiveOne(receiver);
            using (var scope = Transactions.NewScope())
            {
                await receiver.CompleteMessageAsync(message);
                await Stand.Send(client, destination, new ServiceBusMessage("answer"));
                scope.Complete();
            }
            var answer = await Stand.ReceiveOne(stand.Client.CreateReceiver(destination, "t"));
            Expect.Equal("answer", answer.Body.ToString());
            Expect.Equal(null, await stand.Client.CreateReceiver(source, "s").PeekMessageAsync());
        }

        [Check]
        public static async Task A_processor_answers_each_message_in_a_transaction(Stand stand)
        {
            const int Count = 20;
            var source = await stand.NewQueue();
            var destination = await stand.NewQueue();
            await stand.Send(source, Enumerable.Range(10, Count).Select(n => new ServiceBusMessage($"{n}")).ToArray());
            var client = Crossing(stand);
            var sender = client.CreateSender(destination);
            var options = new ServiceBusProcessorOptions { AutoCompleteMessages = false, MaxConcurrentCalls = 4 };
            await using var processor = client.CreateProcessor(source, options);
            var problems = new List<Exception>();
            processor.ProcessErrorAsync += args =>
            {
                lock (problems)
                {
                    problems.Add(args.Exception);
                }
                return Task.CompletedTask;
            };
            processor.ProcessMessageAsync += async args =>
            {
                using var scope = Transactions.NewScope();
                await args.CompleteMessageAsync(args.Message);
                await sender.SendMessageAsync(new ServiceBusMessage(args.Message.Body));
                // A first attempt fails after the sends, and is repeated.
                if (args.Message.DeliveryCount > 1 || args.Message.Body.ToString().EndsWith("5"))
                {
                    scope.Complete();
                    return;
                }
                scope.Dispose();
                await args.AbandonMessageAsync(args.Message);
            };
            await processor.StartProcessingAsync();
            await Transactions.Holds(stand, destination, Enumerable.Range(10, Count).Select(n => $"{n}").ToArray());
            await processor.StopProcessingAsync();
            Expect.Equal(Array.Empty<Exception>(), problems);
            await Transactions.Holds(stand, source);
        }

        private static ServiceBusClient Crossing(Stand stand) =>
            stand.Connect(options => options.EnableCrossEntityTransactions = true);

        private static ServiceBusMessage Via(string key) =>
            new ServiceBusMessage("via") { TransactionPartitionKey = key };

        /// <summary>Two keys that lead to different partitions of a queue; it is left empty.</summary>
        private static async Task<List<string>> OnTwoPartitions(Stand stand, string queue)
        {
            await stand.Send(queue, Enumerable.Range(0, 32).Select(n => Transactions.Keyed("", $"{n}")).ToArray());
            var options = new ServiceBusReceiverOptions { ReceiveMode = ServiceBusReceiveMode.ReceiveAndDelete };
            var messages = await Stand.Receive(stand.Client.CreateReceiver(queue, options), 32);
            return messages.GroupBy(Stand.PartitionOf).Take(2).Select(group => group.First().PartitionKey).ToList();
        }
    }
}
