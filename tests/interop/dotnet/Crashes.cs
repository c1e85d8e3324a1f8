using System;
using System.Collections.Concurrent;
using System.Diagnostics;
using System.IO;
using System.Threading.Tasks;
using Azure.Messaging.ServiceBus;
using Azure.Messaging.ServiceBus.Administration;

namespace Bendybus.Interop
{
    /// <summary>A broker of the check's own is killed and started again while clients work.</summary>
    public static class Crashes
    {
        [Check(Alone = true)]
        public static async Task Nothing_acknowledged_is_lost_when_the_broker_is_killed(Stand stand)
        {
            const int Count = 60;
            using var broker = new Mortal(stand.Partitions);
            await broker.Start();
            var administration = new ServiceBusAdministrationClient(broker.ConnectionString);
            await administration.CreateQueueAsync(
                new CreateQueueOptions("orders") { EnablePartitioning = stand.Partitioned });
            var patient = new ServiceBusRetryOptions { MaxRetries = 10, MaxDelay = TimeSpan.FromSeconds(2) };
            var options = new ServiceBusClientOptions { RetryOptions = patient };
            await using var client = new ServiceBusClient(broker.ConnectionString, options);
            await using var processor = client.CreateProcessor("orders");
            var seen = new ConcurrentDictionary<string, bool>();
            processor.ProcessErrorAsync += args => Task.CompletedTask;
            processor.ProcessMessageAsync += args =>
            {
                seen[args.Message.Body.ToString()] = true;
                return Task.CompletedTask;
            };
            await processor.StartProcessingAsync();
            await using var sender = client.CreateSender("orders");
            for (var number = 0; number < Count; number++)
            {
                if (number == Count / 2)
                {
                    broker.Kill();
                    await broker.Start();
                }
                await sender.SendMessageAsync(new ServiceBusMessage($"{number}"));
            }
            await Stand.Until(() => Task.FromResult(seen.Count == Count), $"all {Count} messages were handled");
        }

        /// <summary>A server with a folder of its own, which keeps its port.</summary>
        private sealed class Mortal : IDisposable
        {
            private readonly string folder = Path.Combine(Path.GetTempPath(), Path.GetRandomFileName());
            private readonly string tier;
            private int port;
            private Process process;

            public Mortal(int partitions)
            {
                tier = partitions == 2 ? "premium" : "standard";
            }

            public string ConnectionString { get; private set; }

            public async Task Start()
            {
                var command = $"serve --data {folder} --port {port} --admin-port 0 --tier {tier} --log-level error";
                process = Process.Start(
                    new ProcessStartInfo(Stand.Setting("BENDYBUS"), command) { RedirectStandardOutput = true });
                var line = await process.StandardOutput.ReadLineAsync();
                Expect.True(line != null && line.StartsWith("ready "), "the server is ready");
                ConnectionString = line.Substring("ready ".Length);
                port = ServiceBusConnectionStringProperties.Parse(ConnectionString).Endpoint.Port;
            }

            public void Kill()
            {
                process.Kill();
                process.WaitForExit();
            }

            public void Dispose()
            {
                Kill();
                Directory.Delete(folder, recursive: true);
            }
        }
    }
}
