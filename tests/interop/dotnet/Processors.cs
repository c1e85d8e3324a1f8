using System;
using System.Collections.Concurrent;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Azure.Messaging.ServiceBus;

namespace Bendybus.Interop
{
    /// <summary>Processors and session processors: the SDK receives, and calls handlers.</summary>
    public static class Processors
    {
        [Check]
        public static async Task A_processor_handles_and_completes_everything(Stand stand)
        {
            const int Count = 60;
            var queue = await stand.NewQueue();
            await stand.Send(queue, Enumerable.Range(0, Count).Select(n => new ServiceBusMessage($"{n}")).ToArray());
            var options = new ServiceBusProcessorOptions { MaxConcurrentCalls = 8, PrefetchCount = 10 };
            await using var processor = stand.Client.CreateProcessor(queue, options);
            var bodies = new ConcurrentDictionary<string, int>();
            await Process(
                processor, Count, args => bodies.AddOrUpdate(args.Message.Body.ToString(), 1, (_, times) => times + 1));
            Expect.Equal(Count, bodies.Count);
            Expect.True(bodies.Values.All(times => times == 1), "each message was handled once");
            Expect.Equal(Array.Empty<string>(), await stand.Bodies(queue));
        }

        [Check]
        public static async Task A_message_whose_handler_fails_comes_again(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"));
            await using var processor = stand.Client.CreateProcessor(queue);
            var errors = new ConcurrentQueue<ProcessErrorEventArgs>();
            var done = new TaskCompletionSource<int>(TaskCreationOptions.RunContinuationsAsynchronously);
            processor.ProcessErrorAsync += args =>
            {
                errors.Enqueue(args);
                return Task.CompletedTask;
            };
            processor.ProcessMessageAsync += args =>
            {
                if (args.Message.DeliveryCount == 1)
                {
                    throw new ArithmeticException("the handler failed");
                }
                done.TrySetResult(args.Message.DeliveryCount);
                return Task.CompletedTask;
            };
            await processor.StartProcessingAsync();
            Expect.Equal(2, await Within(done.Task));
            await processor.StopProcessingAsync();
            Expect.Equal(1, errors.Count(args => args.Exception is ArithmeticException));
        }

        [Check]
        public static async Task A_handler_settles_by_itself(Stand stand)
        {
            var queue = await stand.NewQueue();
            await stand.Send(queue, new ServiceBusMessage("a"), new ServiceBusMessage("b"));
            var options = new ServiceBusProcessorOptions { AutoCompleteMessages = false };
            await using var processor = stand.Client.CreateProcessor(queue, options);
            await Process(processor, 2, args => args.Message.Body.ToString() == "a"
                ? args.CompleteMessageAsync(args.Message)
                : args.DeadLetterMessageAsync(args.Message, "not a"));
            Expect.Equal(Array.Empty<string>(), await stand.Bodies(queue));
            var dead = new ServiceBusProcessorOptions { SubQueue = SubQueue.DeadLetter };
            await using var undertaker = stand.Client.CreateProcessor(queue, dead);
            await Process(undertaker, 1, args => Expect.Equal("not a", args.Message.DeadLetterReason));
        }

        [Check]
        public static async Task Locks_are_renewed_while_a_handler_works(Stand stand)
        {
            var queue = await stand.NewQueue(options => options.LockDuration = TimeSpan.FromSeconds(5));
            await stand.Send(queue, new ServiceBusMessage("a"));
            await using var processor = stand.Client.CreateProcessor(queue);
            var deliveries = 0;
            await Process(processor, 1, async args =>
            {
                Interlocked.Increment(ref deliveries);
                var locked = args.Message.LockedUntil;
                await Stand.Until(() => Task.FromResult(args.Message.LockedUntil > locked), "the lock was renewed");
                await Task.Delay(TimeSpan.FromSeconds(3));
            });
            Expect.Equal(1, deliveries);
            Expect.Equal(Array.Empty<string>(), await stand.Bodies(queue));
        }

        [Check]
        public static async Task A_subscription_is_processed(Stand stand)
        {
            var topic = await stand.NewTopic("s");
            await stand.Send(topic, new ServiceBusMessage("a"), new ServiceBusMessage("b"));
            await using var processor = stand.Client.CreateProcessor(topic, "s");
            await Process(processor, 2, args => Expect.Equal($"{topic}/Subscriptions/s", processor.EntityPath));
        }

        [Check]
        public static async Task A_session_processor_keeps_the_order_of_each_session(Stand stand) // P-13
        {
            const int Sessions = 5, Each = 8;
            var queue = await stand.NewSessionQueue();
            for (var number = 0; number < Each; number++)
            {
                await stand.Send(queue, Enumerable.Range(0, Sessions).Select(n => In($"s{n}", $"{number}")).ToArray());
            }
            var options = new ServiceBusSessionProcessorOptions
            {
                MaxConcurrentSessions = 3,
                SessionIdleTimeout = TimeSpan.FromSeconds(1),
            };
            await using var processor = stand.Client.CreateSessionProcessor(queue, options);
            var seen = new ConcurrentDictionary<string, ConcurrentQueue<string>>();
            var closed = new ConcurrentBag<string>();
            processor.SessionClosingAsync += args =>
            {
                closed.Add(args.SessionId);
                return Task.CompletedTask;
            };
            await Process(processor, Sessions * Each, args =>
            {
                var bodies = seen.GetOrAdd(args.SessionId, _ => new ConcurrentQueue<string>());
                bodies.Enqueue(args.Message.Body.ToString());
                return args.SetSessionStateAsync(new BinaryData($"{bodies.Count}"));
            });
            Expect.Equal(Sessions, seen.Count);
            foreach (var bodies in seen.Values)
            {
                Expect.Equal(Enumerable.Range(0, Each).Select(number => $"{number}"), bodies);
            }
            // Stopping keeps the sessions that are held; closing gives them back.
            await processor.CloseAsync();
            Expect.True(closed.Count >= Sessions, "the closing of each session was told");
            await using var receiver = await stand.Client.AcceptSessionAsync(queue, "s0");
            Expect.Equal($"{Each}", (await receiver.GetSessionStateAsync()).ToString());
        }

        [Check]
        public static async Task A_session_processor_takes_only_the_sessions_it_names(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            await stand.Send(queue, In("wanted", "a"), In("other", "b"), In("wanted", "c"));
            var options = new ServiceBusSessionProcessorOptions { SessionIds = { "wanted" } };
            await using var processor = stand.Client.CreateSessionProcessor(queue, options);
            await Process(processor, 2, args => Expect.Equal("wanted", args.SessionId));
            Expect.Equal(new[] { "b" }, await stand.Bodies(queue));
        }

        [Check]
        public static async Task A_handler_releases_its_session(Stand stand)
        {
            var queue = await stand.NewSessionQueue();
            await stand.Send(queue, In("a", "one"), In("b", "two"));
            var options = new ServiceBusSessionProcessorOptions { MaxConcurrentSessions = 1 };
            await using var processor = stand.Client.CreateSessionProcessor(queue, options);
            await Process(processor, 2, args => args.ReleaseSession());
            Expect.Equal(Array.Empty<string>(), await stand.Bodies(queue));
        }

        private static ServiceBusMessage In(string session, string body) =>
            new ServiceBusMessage(body) { SessionId = session };

        private static Task Process(ServiceBusProcessor processor, int count, Action<ProcessMessageEventArgs> handle) =>
            Process(processor, count, args =>
            {
                handle(args);
                return Task.CompletedTask;
            });

        private static Task Process(
            ServiceBusSessionProcessor processor, int count, Action<ProcessSessionMessageEventArgs> handle) =>
            Process(processor, count, args =>
            {
                handle(args);
                return Task.CompletedTask;
            });

        /// <summary>Start, until so many messages were handled, and stop. What fails is thrown.</summary>
        private static async Task Process(
            ServiceBusProcessor processor, int count, Func<ProcessMessageEventArgs, Task> handle)
        {
            var counter = new Counter(count);
            processor.ProcessErrorAsync += args => counter.Fail(args.Exception);
            processor.ProcessMessageAsync += async args =>
            {
                await handle(args);
                counter.Count();
            };
            await processor.StartProcessingAsync();
            await Within(counter.Done);
            await processor.StopProcessingAsync();
        }

        private static async Task Process(
            ServiceBusSessionProcessor processor, int count, Func<ProcessSessionMessageEventArgs, Task> handle)
        {
            var counter = new Counter(count);
            processor.ProcessErrorAsync += args => counter.Fail(args.Exception);
            processor.ProcessMessageAsync += async args =>
            {
                await handle(args);
                counter.Count();
            };
            await processor.StartProcessingAsync();
            await Within(counter.Done);
            await processor.StopProcessingAsync();
        }

        private static async Task<T> Within<T>(Task<T> task)
        {
            Expect.True(await Task.WhenAny(task, Task.Delay(Stand.Patience)) == task, "the handler was called");
            return await task;
        }

        private sealed class Counter
        {
            private readonly TaskCompletionSource<bool> done =
                new TaskCompletionSource<bool>(TaskCreationOptions.RunContinuationsAsynchronously);

            private int left;

            public Counter(int count)
            {
                left = count;
            }

            public Task<bool> Done => done.Task;

            public void Count()
            {
                if (Interlocked.Decrement(ref left) == 0)
                {
                    done.TrySetResult(true);
                }
            }

            public Task Fail(Exception problem)
            {
                done.TrySetException(problem);
                return Task.CompletedTask;
            }
        }
    }
}
