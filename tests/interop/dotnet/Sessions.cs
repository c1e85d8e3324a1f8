using System;
using System.Linq;
using System.Threading.Tasks;
using Azure.Messaging.ServiceBus;

namespace Bendybus.Interop
{
    /// <summary>Receivers of sessions, their locks and their states.</summary>
    public static class Sessions
    {
        [Check]
        public static async Task A_session_is_received_in_order_in_one_partition(Stand stand) // P-13
        {
            var queue = await stand.NewSessionQueue();
            for (var number = 0; number < 10; number++)
            {
                await stand.Send(queue, In("a", $"a{number}"), In("b", $"b{number}"));
            }
            await using var receiver = await stand.Client.AcceptSessionAsync(queue, "a");
            var messages = await Stand.Receive(receiver, 10);
            Expect.Equal(Enumerable.Range(0, 10).Select(n => $"a{n}"), messages.Select(m => m.Body.ToString()));
            Expect.Equal(1, messages.Select(Stand.PartitionOf).Distinct().Count());
            foreach (var message in messages)
            {
                await receiver.CompleteMessageAsync(message);
            }
            Expect.Equal(null, await receiver.ReceiveMessageAsync(Stand.Moment));
        }

        [Check]
        public static async Task The_next_session_is_one_that_nobody_holds(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            await stand.Send(queue, In("a"), In("b"));
            await using var first = await stand.Client.AcceptNextSessionAsync(queue);
            await using var second = await stand.Client.AcceptNextSessionAsync(queue);
            Expect.Equal(new[] { "a", "b" }, new[] { first.SessionId, second.SessionId }.OrderBy(id => id));
            Expect.Equal(first.SessionId, (await Stand.ReceiveOne(first)).SessionId);
            Expect.Equal(second.SessionId, (await Stand.ReceiveOne(second)).SessionId);
        }

        [Check]
        public static async Task Waiting_for_a_session_ends_with_a_timeout(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            var client = stand.Connect(options => options.RetryOptions.TryTimeout = TimeSpan.FromSeconds(1));
            await Expect.Fails(ServiceBusFailureReason.ServiceTimeout, () => client.AcceptNextSessionAsync(queue));
        }

        [Check]
        public static async Task A_session_has_one_holder_at_a_time(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            var holder = await stand.Client.AcceptSessionAsync(queue, "a");
            await Expect.Fails(
                ServiceBusFailureReason.SessionCannotBeLocked, () => stand.Client.AcceptSessionAsync(queue, "a"));
            await holder.DisposeAsync();
            await using var next = await stand.Client.AcceptSessionAsync(queue, "a");
        }

        [Check]
        public static async Task A_state_is_kept_and_removed(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            await using (var first = await stand.Client.AcceptSessionAsync(queue, "a"))
            {
                Expect.Equal(null, await first.GetSessionStateAsync());
                await first.SetSessionStateAsync(new BinaryData("state"));
            }
            await using var second = await stand.Client.AcceptSessionAsync(queue, "a");
            Expect.Equal("state", (await second.GetSessionStateAsync()).ToString());
            await second.SetSessionStateAsync(null);
            Expect.Equal(null, await second.GetSessionStateAsync());
        }

        [Check]
        public static async Task A_lock_on_a_session_is_renewed(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            await using var receiver = await stand.Client.AcceptSessionAsync(queue, "a");
            var before = receiver.SessionLockedUntil;
            await Task.Delay(50);
            await receiver.RenewSessionLockAsync();
            Expect.True(receiver.SessionLockedUntil > before, "the lock was renewed");
        }

        [Check]
        public static async Task A_lost_session_is_told_and_its_message_comes_again(Stand stand)
        {
            var queue = await stand.NewQueue(options =>
            {
                options.RequiresSession = true;
                options.LockDuration = TimeSpan.FromSeconds(5);
            });
            await stand.Send(queue, In("a"));
            await using var first = await stand.Client.AcceptSessionAsync(queue, "a");
            var message = await Stand.ReceiveOne(first);
            var second = await stand.Connect().AcceptNextSessionAsync(queue);
            Expect.Equal(2, (await Stand.ReceiveOne(second)).DeliveryCount);
            // The first receiver is told over its own connection, perhaps at this moment. While the SDK closes its
            // links, it reports other errors: it cannot use a link, or has asked for the session again.
            await Stand.Until(() => IsLost(() => first.CompleteMessageAsync(message)), "it cannot complete");
            await Stand.Until(() => IsLost(() => first.RenewSessionLockAsync()), "it cannot renew the lock");
        }

        /// <summary>Whether it fails because the session is lost. It must not succeed.</summary>
        private static async Task<bool> IsLost(Func<Task> operation)
        {
            var problem = await Expect.Throws<Exception>(operation);
            return problem is ServiceBusException { Reason: ServiceBusFailureReason.SessionLockLost };
        }

        [Check]
        public static async Task Messages_of_a_session_are_deferred_and_peeked(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            await stand.Send(queue, In("a"), In("b"));
            await using var receiver = await stand.Client.AcceptSessionAsync(queue, "a");
            var message = await Stand.ReceiveOne(receiver);
            await receiver.DeferMessageAsync(message);
            Expect.Equal("a", (await receiver.PeekMessageAsync()).SessionId);
            Expect.Equal(null, await receiver.PeekMessageAsync());
            var deferred = await receiver.ReceiveDeferredMessageAsync(message.SequenceNumber);
            await receiver.CompleteMessageAsync(deferred);
        }

        [Check]
        public static async Task Session_ids_are_the_same_whatever_their_case(Stand stand) // P-13
        {
            var queue = await stand.NewSessionQueue();
            await stand.Send(queue, In("Alpha"), In("ALPHA"), In("alpha"));
            await using var receiver = await stand.Client.AcceptSessionAsync(queue, "aLPHA");
            var messages = await Stand.Receive(receiver, 3);
            Expect.Equal(new[] { "Alpha", "ALPHA", "alpha" }, messages.Select(message => message.SessionId));
            Expect.Equal(1, messages.Select(Stand.PartitionOf).Distinct().Count());
            await receiver.SetSessionStateAsync(new BinaryData("state"));
            await Expect.Fails(
                ServiceBusFailureReason.SessionCannotBeLocked, () => stand.Client.AcceptSessionAsync(queue, "Alpha"));
            await receiver.DisposeAsync();
            await using var again = await stand.Client.AcceptSessionAsync(queue, "ALPHA");
            Expect.Equal("state", (await again.GetSessionStateAsync()).ToString());
        }

        [Check]
        public static async Task A_message_without_a_session_is_refused(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            await Expect.Throws<InvalidOperationException>(() => stand.Send(queue, new ServiceBusMessage("none")));
        }

        [Check]
        public static async Task A_session_queue_is_not_received_from_without_one(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            var receiver = stand.Client.CreateReceiver(queue);
            await Expect.Throws<InvalidOperationException>(() => receiver.ReceiveMessageAsync(Stand.Moment));
            var plain = await stand.NewQueue();
            await Expect.Throws<InvalidOperationException>(() => stand.Client.AcceptSessionAsync(plain, "a"));
        }

        [Check]
        public static async Task Sessions_of_a_subscription_are_received(Stand stand)
        {
            var topic = await stand.NewTopic();
            await stand.Administration.CreateSubscriptionAsync(
                new Azure.Messaging.ServiceBus.Administration.CreateSubscriptionOptions(topic, "s")
                {
                    RequiresSession = true,
                });
            await stand.Send(topic, In("a", "one"), In("a", "two"));
            await using var receiver = await stand.Client.AcceptNextSessionAsync(topic, "s");
            var messages = await Stand.Receive(receiver, 2);
            Expect.Equal(new[] { "one", "two" }, messages.Select(message => message.Body.ToString()));
        }

        private static ServiceBusMessage In(string session, string body = "body") =>
            new ServiceBusMessage(body) { SessionId = session };
    }
}
