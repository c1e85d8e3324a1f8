using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Azure.Messaging.ServiceBus;

namespace Bendybus.Interop
{
    /// <summary>Sending, receiving and settling without sessions.</summary>
    public static class Messages
    {
        [Check]
        public static async Task A_message_comes_back_as_it_was_sent(Stand stand)
        {
            var queue = await stand.NewQueue();
            var sent = new ServiceBusMessage("body")
            {
                MessageId = "id",
                PartitionKey = "key",
                CorrelationId = "correlation",
                Subject = "subject",
                To = "to",
                ReplyTo = "reply to",
                ReplyToSessionId = "reply session",
                ContentType = "text/plain",
                TimeToLive = TimeSpan.FromMinutes(7),
            };
            await stand.Send(queue, sent);
            var message = await stand.ReceiveOne(queue);
            Expect.Equal("body", message.Body.ToString());
            Expect.Equal("id", message.MessageId);
            Expect.Equal("key", message.PartitionKey);
            Expect.Equal("correlation", message.CorrelationId);
            Expect.Equal("subject", message.Subject);
            Expect.Equal("to", message.To);
            Expect.Equal("reply to", message.ReplyTo);
            Expect.Equal("reply session", message.ReplyToSessionId);
            Expect.Equal("text/plain", message.ContentType);
            Expect.Equal(TimeSpan.FromMinutes(7), message.TimeToLive);
            var lateness = message.ExpiresAt - message.EnqueuedTime - message.TimeToLive;
            Expect.True(lateness.Duration() < TimeSpan.FromSeconds(5), $"it expires in time, not {lateness} later");
            Expect.Equal(1, message.DeliveryCount);
            Expect.Equal(ServiceBusMessageState.Active, message.State);
            Expect.True(message.LockedUntil > DateTimeOffset.UtcNow, "the message is locked");
        }

        [Check]
        public static async Task Application_properties_keep_their_types(Stand stand)
        {
            var properties = new Dictionary<string, object>
            {
                ["bool"] = true,
                ["byte"] = (byte)1,
                ["sbyte"] = (sbyte)-1,
                ["short"] = (short)-2,
                ["ushort"] = (ushort)2,
                ["int"] = -3,
                ["uint"] = 3u,
                ["long"] = -4L,
                ["ulong"] = 4ul,
                ["float"] = 1.5f,
                ["double"] = 2.5,
                ["decimal"] = 3.5m,
                ["char"] = 'x',
                ["string"] = "text",
                ["guid"] = Guid.NewGuid(),
                ["uri"] = new Uri("https://example.org/path?query"),
                ["time"] = new DateTime(2031, 2, 3, 4, 5, 6, 789, DateTimeKind.Utc),
                ["offset"] = new DateTimeOffset(2031, 2, 3, 4, 5, 6, 789, TimeSpan.FromHours(1)),
                ["span"] = TimeSpan.FromTicks(1234567),
                ["null"] = null,
            };
            var sent = new ServiceBusMessage();
            foreach (var property in properties)
            {
                sent.ApplicationProperties[property.Key] = property.Value;
            }
            var queue = await stand.NewQueue();
            await stand.Send(queue, sent);
            var message = await stand.ReceiveOne(queue);
            Expect.Equal(properties.Count, message.ApplicationProperties.Count);
            foreach (var property in properties)
            {
                Expect.Equal(property.Value, message.ApplicationProperties[property.Key]);
            }
        }

        [Check]
        public static async Task A_batch_arrives_whole_in_one_partition(Stand stand) // P-18
        {
            var queue = await stand.NewQueue();
            var sender = stand.Client.CreateSender(queue);
            using var batch = await sender.CreateMessageBatchAsync();
            for (var number = 0; number < 50; number++)
            {
                Expect.True(batch.TryAddMessage(new ServiceBusMessage($"{number:00}")), "there is room in the batch");
            }
            await sender.SendMessagesAsync(batch);
            var messages = await Stand.Receive(stand.Client.CreateReceiver(queue), 50);
            Expect.Equal(Enumerable.Range(0, 50).Select(n => $"{n:00}"), messages.Select(m => m.Body.ToString()));
            Expect.Equal(1, messages.Select(Stand.PartitionOf).Distinct().Count());
        }

        [Check]
        public static async Task A_full_batch_takes_no_more_and_is_sent(Stand stand)
        {
            var queue = await stand.NewQueue();
            var sender = stand.Client.CreateSender(queue);
            using var batch = await sender.CreateMessageBatchAsync();
            while (batch.TryAddMessage(new ServiceBusMessage(new byte[16 * 1024])))
            {
            }
            Expect.True(batch.SizeInBytes <= batch.MaxSizeInBytes, "the batch keeps to its limit");
            await sender.SendMessagesAsync(batch);
            await Stand.Receive(stand.Client.CreateReceiver(queue), batch.Count);
        }

        [Check]
        public static async Task A_list_of_messages_is_sent_as_one(Stand stand)
        {
            var queue = await stand.NewQueue();
            var sender = stand.Client.CreateSender(queue);
            await sender.SendMessagesAsync(new[] { new ServiceBusMessage("a"), new ServiceBusMessage("b") });
            Expect.Equal(new[] { "a", "b" }, await stand.Bodies(queue));
        }

        [Check]
        public static async Task A_message_that_is_too_large_is_refused(Stand stand)
        {
            var queue = await stand.NewQueue();
            var large = new ServiceBusMessage(new byte[1 << 21]);
            await Expect.Fails(ServiceBusFailureReason.MessageSizeExceeded, () => stand.Send(queue, large));
            await stand.Send(queue, new ServiceBusMessage("small"));
        }

        [Check(2)]
        public static async Task Batches_stay_at_a_megabyte_where_messages_may_be_large(Stand stand)
        {
            var queue = await stand.NewQueue(options => options.MaxMessageSizeInKilobytes = 102_400);
            var sender = stand.Client.CreateSender(queue);
            await sender.SendMessageAsync(new ServiceBusMessage(new byte[5 << 20]));
            using var batch = await sender.CreateMessageBatchAsync();
            Expect.True(batch.MaxSizeInBytes <= 1 << 20, $"{batch.MaxSizeInBytes} is at most a megabyte");
        }

        [Check]
        public static async Task Equal_keys_share_a_partition(Stand stand) // P-12, P-31
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, Enumerable.Range(0, 64).Select(number => WithKey($"{number % 16}")).ToArray());
            var messages = await Stand.Receive(stand.Client.CreateReceiver(queue), 64);
            foreach (var ofKey in messages.GroupBy(message => message.PartitionKey))
            {
                Expect.Equal(4, ofKey.Count());
                Expect.Equal(1, ofKey.Select(Stand.PartitionOf).Distinct().Count());
            }
            var used = messages.Select(Stand.PartitionOf).Distinct().Count();
            Expect.True(stand.Partitioned ? used > 1 : used == 1, $"{used} partitions are in use");
        }

        [Check]
        public static async Task Completed_messages_are_gone(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"), new ServiceBusMessage("b"));
            var receiver = stand.Client.CreateReceiver(queue);
            foreach (var message in await Stand.Receive(receiver, 2))
            {
                await receiver.CompleteMessageAsync(message);
            }
            Expect.Equal(Array.Empty<string>(), await stand.Bodies(queue));
        }

        [Check]
        public static async Task Received_and_deleted_messages_are_gone(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"), new ServiceBusMessage("b"));
            var options = new ServiceBusReceiverOptions { ReceiveMode = ServiceBusReceiveMode.ReceiveAndDelete };
            var receiver = stand.Client.CreateReceiver(queue, options);
            var messages = await Stand.Receive(receiver, 2);
            Expect.Equal(new[] { "a", "b" }, messages.Select(message => message.Body.ToString()).OrderBy(body => body));
            Expect.Equal(Array.Empty<string>(), await stand.Bodies(queue));
            await Expect.Throws<InvalidOperationException>(() => receiver.CompleteMessageAsync(messages[0]));
        }

        [Check]
        public static async Task Prefetched_messages_are_received_and_settled(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, Enumerable.Range(0, 20).Select(n => new ServiceBusMessage($"{n}")).ToArray());
            var receiver = stand.Client.CreateReceiver(queue, new ServiceBusReceiverOptions { PrefetchCount = 8 });
            for (var number = 0; number < 20; number++)
            {
                await receiver.CompleteMessageAsync(await Stand.ReceiveOne(receiver));
            }
            Expect.Equal(Array.Empty<string>(), await stand.Bodies(queue));
        }

        [Check]
        public static async Task Messages_are_received_as_a_stream(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"), new ServiceBusMessage("b"), new ServiceBusMessage("c"));
            var receiver = stand.Client.CreateReceiver(queue);
            var bodies = new List<string>();
            using var timeout = new CancellationTokenSource(Stand.Patience);
            await foreach (var message in receiver.ReceiveMessagesAsync(timeout.Token))
            {
                bodies.Add(message.Body.ToString());
                await receiver.CompleteMessageAsync(message);
                if (bodies.Count == 3)
                {
                    break;
                }
            }
            Expect.Equal(new[] { "a", "b", "c" }, bodies.OrderBy(body => body));
        }

        [Check]
        public static async Task An_empty_queue_gives_nothing(Stand stand)
        {
            var receiver = stand.Client.CreateReceiver(await stand.NewQueue());
            Expect.Equal(null, await receiver.ReceiveMessageAsync(Stand.Moment));
            Expect.Equal(0, (await receiver.ReceiveMessagesAsync(10, Stand.Moment)).Count);
        }

        [Check]
        public static async Task An_abandoned_message_comes_again_with_what_was_changed(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"));
            var receiver = stand.Client.CreateReceiver(queue);
            var first = await Stand.ReceiveOne(receiver);
            await receiver.AbandonMessageAsync(first, new Dictionary<string, object> { ["tried"] = 1 });
            var second = await Stand.ReceiveOne(receiver);
            Expect.Equal(2, second.DeliveryCount);
            Expect.Equal(1, second.ApplicationProperties["tried"]);
            Expect.Equal(first.SequenceNumber, second.SequenceNumber);
        }

        [Check]
        public static async Task A_deferred_message_is_received_by_its_number(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"));
            var receiver = stand.Client.CreateReceiver(queue);
            var message = await Stand.ReceiveOne(receiver);
            await receiver.DeferMessageAsync(message, new Dictionary<string, object> { ["later"] = true });
            Expect.Equal(null, await receiver.ReceiveMessageAsync(Stand.Moment));
            Expect.Equal(ServiceBusMessageState.Deferred, (await receiver.PeekMessageAsync()).State);
            var deferred = await receiver.ReceiveDeferredMessageAsync(message.SequenceNumber);
            Expect.Equal(true, deferred.ApplicationProperties["later"]);
            Expect.Equal(ServiceBusMessageState.Deferred, deferred.State);
            await receiver.CompleteMessageAsync(deferred);
            await Expect.Fails(
                ServiceBusFailureReason.MessageNotFound,
                () => receiver.ReceiveDeferredMessageAsync(message.SequenceNumber));
        }

        [Check]
        public static async Task A_dead_letter_says_why(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"));
            var receiver = stand.Client.CreateReceiver(queue);
            var changes = new Dictionary<string, object> { ["seen"] = "yes" };
            await receiver.DeadLetterMessageAsync(await Stand.ReceiveOne(receiver), changes, "reason", "description");
            var options = new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter };
            var dead = stand.Client.CreateReceiver(queue, options);
            var message = await Stand.ReceiveOne(dead);
            Expect.Equal("reason", message.DeadLetterReason);
            Expect.Equal("description", message.DeadLetterErrorDescription);
            Expect.Equal("yes", message.ApplicationProperties["seen"]);
            await dead.CompleteMessageAsync(message);
        }

        [Check]
        public static async Task A_dead_letter_reason_that_is_no_text_keeps_its_type(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"));
            var receiver = stand.Client.CreateReceiver(queue);
            var changes = new Dictionary<string, object> { ["DeadLetterReason"] = 7L };
            await receiver.DeadLetterMessageAsync(await Stand.ReceiveOne(receiver), changes);
            var options = new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter };
            var message = await Stand.ReceiveOne(stand.Client.CreateReceiver(queue, options));
            Expect.Equal(7L, message.ApplicationProperties["DeadLetterReason"]);
        }

        [Check]
        public static async Task A_message_that_fails_too_often_is_dead_lettered(Stand stand)
        {
            var queue = await stand.NewQueue(options => options.MaxDeliveryCount = 2);
            await stand.Send(queue, new ServiceBusMessage("a"));
            var receiver = stand.Client.CreateReceiver(queue);
            await receiver.AbandonMessageAsync(await Stand.ReceiveOne(receiver));
            await receiver.AbandonMessageAsync(await Stand.ReceiveOne(receiver));
            var options = new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter };
            var message = await Stand.ReceiveOne(stand.Client.CreateReceiver(queue, options));
            Expect.Equal("MaxDeliveryCountExceeded", message.DeadLetterReason);
        }

        [Check]
        public static async Task A_renewed_lock_lasts_longer(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"));
            var receiver = stand.Client.CreateReceiver(queue);
            var message = await Stand.ReceiveOne(receiver);
            var before = message.LockedUntil;
            await Task.Delay(50);
            await receiver.RenewMessageLockAsync(message);
            Expect.True(message.LockedUntil > before, "the lock was renewed");
            await receiver.CompleteMessageAsync(message);
        }

        [Check]
        public static async Task A_message_is_not_settled_twice(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"));
            var receiver = stand.Client.CreateReceiver(queue);
            var message = await Stand.ReceiveOne(receiver);
            await receiver.CompleteMessageAsync(message);
            await Expect.Fails(
                ServiceBusFailureReason.MessageLockLost, () => receiver.CompleteMessageAsync(message));
        }

        [Check]
        public static async Task A_message_is_settled_by_another_receiver(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"));
            var message = await stand.ReceiveOne(queue);
            var other = stand.Connect().CreateReceiver(queue);
            var token = Guid.Parse(message.LockToken).ToByteArray();
            var rebuilt = ServiceBusReceivedMessage.FromAmqpMessage(
                message.GetRawAmqpMessage(), BinaryData.FromBytes(token));
            await other.CompleteMessageAsync(rebuilt);
            Expect.Equal(Array.Empty<string>(), await stand.Bodies(queue));
        }

        [Check]
        public static async Task Peek_shows_messages_without_taking_them(Stand stand) // P-30
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, Enumerable.Range(0, 10).Select(n => WithKey($"{n}")).ToArray());
            var receiver = stand.Client.CreateReceiver(queue);
            var seen = new HashSet<long>();
            for (var message = await receiver.PeekMessageAsync(); message != null;)
            {
                Expect.True(seen.Add(message.SequenceNumber), "no message is shown twice");
                message = await receiver.PeekMessageAsync();
            }
            Expect.Equal(10, seen.Count);
            Expect.Equal(10, (await Stand.Receive(receiver, 10)).Select(m => m.SequenceNumber).Distinct().Count());
        }

        [Check]
        public static async Task A_peeked_message_shows_until_when_it_is_locked(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"));
            var message = await stand.ReceiveOne(queue);
            var peeked = await stand.Connect().CreateReceiver(queue).PeekMessageAsync();
            var annotations = peeked.GetRawAmqpMessage().MessageAnnotations;
            Expect.True(annotations.ContainsKey("x-opt-locked-until"), "the annotation is there");
            Expect.Equal(message.SequenceNumber, peeked.SequenceNumber);
        }

        [Check]
        public static async Task The_lifetime_of_an_entity_shows_on_its_messages(Stand stand)
        {
            var queue = await stand.NewQueue(options => options.DefaultMessageTimeToLive = TimeSpan.FromHours(1));
            await stand.Send(
                queue,
                new ServiceBusMessage { MessageId = "none" },
                new ServiceBusMessage { MessageId = "less", TimeToLive = TimeSpan.FromMinutes(1) },
                new ServiceBusMessage { MessageId = "more", TimeToLive = TimeSpan.FromDays(1) });
            var messages = await Stand.Receive(stand.Client.CreateReceiver(queue), 3);
            var lifetimes = messages.ToDictionary(message => message.MessageId, message => message.TimeToLive);
            Expect.Equal(TimeSpan.FromHours(1), lifetimes["none"]);
            Expect.Equal(TimeSpan.FromMinutes(1), lifetimes["less"]);
            Expect.Equal(TimeSpan.FromHours(1), lifetimes["more"]);
            foreach (var message in messages)
            {
                var properties = message.GetRawAmqpMessage().Properties;
                Expect.True(properties.CreationTime != null, "the creation time is there");
                Expect.Equal(properties.CreationTime + message.TimeToLive, properties.AbsoluteExpiryTime);
            }
        }

        [Check]
        public static async Task A_message_expires_into_the_dead_letter_queue(Stand stand)
        {
            var queue = await stand.NewQueue(options => options.DeadLetteringOnMessageExpiration = true);
            await stand.Send(queue, new ServiceBusMessage("a") { TimeToLive = TimeSpan.FromMilliseconds(100) });
            var options = new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter };
            var message = await Stand.ReceiveOne(stand.Client.CreateReceiver(queue, options));
            Expect.Equal("TTLExpiredException", message.DeadLetterReason);
        }

        [Check]
        public static async Task Scheduled_messages_come_when_they_are_due(Stand stand)
        {
            var queue = await stand.NewQueue();
            var sender = stand.Client.CreateSender(queue);
            var soon = DateTimeOffset.UtcNow.AddSeconds(3);
            var number = await sender.ScheduleMessageAsync(new ServiceBusMessage("soon"), soon);
            Expect.Equal(ServiceBusMessageState.Scheduled, (await Peek(stand, queue)).State);
            var late = new[] { new ServiceBusMessage("x"), new ServiceBusMessage("y") };
            var numbers = await sender.ScheduleMessagesAsync(late, DateTimeOffset.UtcNow.AddHours(1));
            await sender.CancelScheduledMessagesAsync(numbers);
            var message = await stand.ReceiveOne(queue);
            Expect.Equal("soon", message.Body.ToString());
            Expect.Equal(ServiceBusMessageState.Scheduled, message.State);
            Expect.True(message.EnqueuedTime >= soon.AddMilliseconds(-1), "it was not enqueued before its time");
            Expect.Equal(number >> 48, Stand.PartitionOf(message));
            Expect.Equal(new[] { "soon" }, await stand.Bodies(queue));
        }

        [Check]
        public static async Task A_scheduled_enqueue_time_is_kept(Stand stand)
        {
            var queue = await stand.NewQueue();
            var due = DateTimeOffset.UtcNow.AddHours(1);
            await stand.Send(queue, new ServiceBusMessage("a") { ScheduledEnqueueTime = due });
            var message = await Peek(stand, queue);
            Expect.Equal(ServiceBusMessageState.Scheduled, message.State);
            Expect.Equal(due.ToUnixTimeMilliseconds(), message.ScheduledEnqueueTime.ToUnixTimeMilliseconds());
        }

        [Check]
        public static async Task Duplicates_are_dropped(Stand stand) // P-15
        {
            var queue = await stand.NewQueue(options => options.RequiresDuplicateDetection = true);
            await stand.Send(
                queue,
                new ServiceBusMessage("first") { MessageId = "id" },
                new ServiceBusMessage("second") { MessageId = "id" },
                new ServiceBusMessage("third") { MessageId = "other" });
            Expect.Equal(new[] { "first", "third" }, await stand.Bodies(queue));
        }

        [Check]
        public static async Task Messages_are_forwarded_and_so_are_dead_letters(Stand stand) // P-34
        {
            var destination = await stand.NewQueue();
            var graveyard = await stand.NewQueue();
            var source = await stand.NewQueue(options => options.ForwardTo = destination);
            var mortal = await stand.NewQueue(options => options.ForwardDeadLetteredMessagesTo = graveyard);
            await stand.Send(source, new ServiceBusMessage("forwarded"));
            Expect.Equal("forwarded", (await stand.ReceiveOne(destination)).Body.ToString());
            await stand.Send(mortal, new ServiceBusMessage("dead"));
            var receiver = stand.Client.CreateReceiver(mortal);
            await receiver.DeadLetterMessageAsync(await Stand.ReceiveOne(receiver), "reason");
            var message = await stand.ReceiveOne(graveyard);
            Expect.Equal("reason", message.DeadLetterReason);
            Expect.Equal(mortal.ToLowerInvariant(), message.DeadLetterSource);
        }

        [Check]
        public static async Task The_source_of_a_dead_letter_is_lower_case(Stand stand)
        {
            var graveyard = await stand.NewQueue();
            var name = "Mixed-" + Stand.NewName();
            await stand.NewQueue(options =>
            {
                options.Name = name;
                options.ForwardDeadLetteredMessagesTo = graveyard;
            });
            await stand.Send(name, new ServiceBusMessage("dead"));
            var receiver = stand.Client.CreateReceiver(name);
            await receiver.DeadLetterMessageAsync(await Stand.ReceiveOne(receiver));
            Expect.Equal(name.ToLowerInvariant(), (await stand.ReceiveOne(graveyard)).DeadLetterSource);
        }

        [Check]
        public static async Task What_a_session_queue_refuses_is_dead_lettered_with_the_reason(Stand stand)
        {
            var destination = await stand.NewSessionQueue();
            var source = await stand.NewQueue(options => options.ForwardTo = destination);
            await stand.Send(source, new ServiceBusMessage("no session"));
            var options = new ServiceBusReceiverOptions { SubQueue = SubQueue.DeadLetter };
            var message = await Stand.ReceiveOne(stand.Client.CreateReceiver(source, options));
            Expect.Equal(
                "Session enabled entity doesn't allow a message whose session identifier is null.",
                message.DeadLetterErrorDescription);
        }

        [Check]
        public static async Task An_entity_that_is_not_there_is_not_found(Stand stand)
        {
            var name = Stand.NewName();
            var message = new ServiceBusMessage("a");
            var refused = await Expect.Fails(
                ServiceBusFailureReason.MessagingEntityNotFound, () => stand.Send(name, message));
            Expect.True(refused.Message.Contains("The messaging entity 'sb://"), refused.Message);
            Expect.True(refused.Message.Contains($"/{name}' could not be found."), refused.Message);
            await Expect.Fails(
                ServiceBusFailureReason.MessagingEntityNotFound,
                () => stand.Client.CreateReceiver(name).ReceiveMessageAsync(Stand.Moment));
        }

        private static Task<ServiceBusReceivedMessage> Peek(Stand stand, string queue) =>
            stand.Client.CreateReceiver(queue).PeekMessageAsync();

        private static ServiceBusMessage WithKey(string key) => new ServiceBusMessage(key) { PartitionKey = key };
    }
}
