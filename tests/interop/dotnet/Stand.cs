using System;
using System.Collections.Concurrent;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Azure.Messaging.ServiceBus;
using Azure.Messaging.ServiceBus.Administration;

namespace Bendybus.Interop
{
    /// <summary>Clients of a server for one check, whose entities have so many partitions.</summary>
    public sealed class Stand : IAsyncDisposable
    {
        /// <summary>16 and 1 are of the Standard tier, 2 is of the Premium tier.</summary>
        public static readonly int[] Kinds = { 16, 2, 1 };

        /// <summary>Long enough for a loaded machine. What is waited for comes earlier.</summary>
        public static readonly TimeSpan Patience = TimeSpan.FromSeconds(30);

        /// <summary>How long to look for something that must not be there.</summary>
        public static readonly TimeSpan Moment = TimeSpan.FromMilliseconds(300);

        private static int names;

        private readonly ConcurrentBag<ServiceBusClient> clients = new ConcurrentBag<ServiceBusClient>();
        private readonly ConcurrentStack<Func<Task>> removals = new ConcurrentStack<Func<Task>>();

        public Stand(int partitions)
        {
            Partitions = partitions;
            ConnectionString = Setting(partitions == 2 ? "BENDYBUS_PREMIUM" : "BENDYBUS_STANDARD");
            Administration = new ServiceBusAdministrationClient(ConnectionString);
            Client = Connect();
        }

        public int Partitions { get; }

        public bool Partitioned => Partitions > 1;

        /// <summary>As the server prints it: one for messages and administration.</summary>
        public string ConnectionString { get; }

        public ServiceBusConnectionStringProperties Address =>
            ServiceBusConnectionStringProperties.Parse(ConnectionString);

        public ServiceBusClient Client { get; }

        public ServiceBusAdministrationClient Administration { get; }

        public static string Describe(int partitions) => partitions == 1 ? "1 partition" : $"{partitions} partitions";

        public static string Setting(string name) =>
            Environment.GetEnvironmentVariable(name) ?? throw new InvalidOperationException($"{name} is not set");

        public static string NewName() => $"dotnet-{Interlocked.Increment(ref names)}";

        public static long PartitionOf(ServiceBusReceivedMessage message) => message.SequenceNumber >> 48;

        /// <summary>Another client. It does not retry: a refusal is to be seen.</summary>
        public ServiceBusClient Connect(Action<ServiceBusClientOptions> with = null)
        {
            var client = new ServiceBusClient(ConnectionString, Options(with));
            clients.Add(client);
            return client;
        }

        public static ServiceBusClientOptions Options(Action<ServiceBusClientOptions> with = null)
        {
            var options = new ServiceBusClientOptions();
            options.RetryOptions.MaxRetries = 0;
            options.RetryOptions.TryTimeout = Patience;
            with?.Invoke(options);
            return options;
        }

        public async Task<string> NewQueue(Action<CreateQueueOptions> with = null)
        {
            var options = new CreateQueueOptions(NewName()) { EnablePartitioning = Partitioned };
            with?.Invoke(options);
            await Administration.CreateQueueAsync(options);
            removals.Push(() => Administration.DeleteQueueAsync(options.Name));
            return options.Name;
        }

        public Task<string> NewSessionQueue() => NewQueue(options => options.RequiresSession = true);

        public async Task<string> NewTopic(params string[] subscriptions)
        {
            var options = new CreateTopicOptions(NewName()) { EnablePartitioning = Partitioned };
            await Administration.CreateTopicAsync(options);
            removals.Push(() => Administration.DeleteTopicAsync(options.Name));
            foreach (var subscription in subscriptions)
            {
                await Administration.CreateSubscriptionAsync(options.Name, subscription);
            }
            return options.Name;
        }

        public Task Send(string entity, params ServiceBusMessage[] messages) => Send(Client, entity, messages);

        public static async Task Send(ServiceBusClient client, string entity, params ServiceBusMessage[] messages)
        {
            await using var sender = client.CreateSender(entity);
            foreach (var message in messages)
            {
                await sender.SendMessageAsync(message);
            }
        }

        public Task<ServiceBusReceivedMessage> ReceiveOne(string queue) => ReceiveOne(Client.CreateReceiver(queue));

        public static async Task<ServiceBusReceivedMessage> ReceiveOne(ServiceBusReceiver receiver)
        {
            var message = await receiver.ReceiveMessageAsync(Patience);
            Expect.True(message != null, $"a message came from {receiver.EntityPath}");
            return message;
        }

        /// <summary>So many, which must come.</summary>
        public static async Task<List<ServiceBusReceivedMessage>> Receive(ServiceBusReceiver receiver, int count)
        {
            var messages = new List<ServiceBusReceivedMessage>();
            while (messages.Count < count)
            {
                var more = await receiver.ReceiveMessagesAsync(count - messages.Count, Patience);
                Expect.True(more.Count > 0, $"{count} messages came and not {messages.Count} only");
                messages.AddRange(more);
            }
            return messages;
        }

        /// <summary>The bodies of all that is in a queue, in any state, in order of their text.</summary>
        public async Task<List<string>> Bodies(string queue)
        {
            await using var receiver = Client.CreateReceiver(queue);
            var found = await receiver.PeekMessagesAsync(100, 0);
            return found.Select(message => message.Body.ToString()).OrderBy(body => body).ToList();
        }

        /// <summary>Until it holds, which it must in the end.</summary>
        public static async Task Until(Func<Task<bool>> holds, string claim)
        {
            var end = DateTime.UtcNow + Patience;
            while (!await holds())
            {
                Expect.True(DateTime.UtcNow < end, claim);
                await Task.Delay(50);
            }
        }

        public async ValueTask DisposeAsync()
        {
            foreach (var client in clients)
            {
                await client.DisposeAsync();
            }
            // The last first, since it may forward to those before it.
            foreach (var remove in removals)
            {
                await remove();
            }
        }
    }
}
