using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Linq;
using System.Net.Http;
using System.Text;
using System.Threading.Tasks;
using Azure.Messaging.ServiceBus;

namespace Bendybus.Interop
{
    /// <summary>What a client meets when a messaging store is away, and half the partitions with it.</summary>
    public static class Outages
    {
        private const string Store = "store-1";

        [Check(16, 2, Alone = true)]
        public static async Task Other_keys_go_on_at_once_where_one_partition_is_away(Stand stand) // P-16, P-17
        {
            var queue = await stand.NewQueue();
            await using var sender = stand.Client.CreateSender(queue);
            var keys = await KeysByStore(stand, queue);
            await Switch(stand, "fail");
            try
            {
                var problem = await Expect.Throws<ServiceBusException>(() => sender.SendMessageAsync(Of(keys.Away)));
                Expect.True(problem.IsTransient, "the SDK would try again");
                Expect.True(
                    problem.Reason != ServiceBusFailureReason.ServiceBusy,
                    "the reason is not one for which the SDK holds back every send for ten seconds");
                // Ten seconds is what the SDK's sender holds back for; far less than that shows it did not.
                var watch = Stopwatch.StartNew();
                await sender.SendMessageAsync(Of(keys.Here));
                await sender.SendMessageAsync(new ServiceBusMessage("no key"));
                Expect.True(watch.Elapsed < TimeSpan.FromSeconds(8), $"others were not held back: {watch.Elapsed}");
            }
            finally
            {
                await Switch(stand, "heal");
            }
        }

        [Check(16, 2, Alone = true)]
        public static async Task A_send_is_retried_until_its_partition_is_back(Stand stand) // P-17
        {
            var queue = await stand.NewQueue();
            var keys = await KeysByStore(stand, queue);
            var patient = stand.Connect(options =>
            {
                options.RetryOptions.MaxRetries = 20;
                options.RetryOptions.MaxDelay = TimeSpan.FromSeconds(1);
            });
            await Switch(stand, "fail");
            Task sending;
            try
            {
                await Expect.Throws<ServiceBusException>(() => stand.Send(queue, Of(keys.Away)));
                sending = Stand.Send(patient, queue, Of(keys.Away));
            }
            finally
            {
                await Switch(stand, "heal");
            }
            await sending;
        }

        private static ServiceBusMessage Of(string key) => new ServiceBusMessage(key) { PartitionKey = key };

        /// <summary>A key whose partition is in the store that will be away, and one whose partition is not.</summary>
        private static async Task<(string Away, string Here)> KeysByStore(Stand stand, string queue)
        {
            await stand.Send(queue, Enumerable.Range(0, 32).Select(number => Of($"{number}")).ToArray());
            var options = new ServiceBusReceiverOptions { ReceiveMode = ServiceBusReceiveMode.ReceiveAndDelete };
            var messages = await Stand.Receive(stand.Client.CreateReceiver(queue, options), 32);
            // Partitions of a queue take turns in the stores, of which there are two.
            var stores = messages.GroupBy(message => Stand.PartitionOf(message) % 2).ToList();
            Expect.Equal(2, stores.Count);
            var candidates = stores.Select(store => store.First().PartitionKey).ToList();
            await Switch(stand, "fail");
            try
            {
                await stand.Send(queue, Of(candidates[0]));
                return (candidates[1], candidates[0]);
            }
            catch (ServiceBusException)
            {
                return (candidates[0], candidates[1]);
            }
            finally
            {
                await Switch(stand, "heal");
                await Stand.Until(() => Takes(stand, queue, candidates), "the store is back");
            }
        }

        private static async Task<bool> Takes(Stand stand, string queue, List<string> keys)
        {
            try
            {
                await using var client = stand.Connect();
                await Stand.Send(client, queue, keys.Select(Of).ToArray());
                return true;
            }
            catch (ServiceBusException)
            {
                return false;
            }
        }

        /// <summary>The fault controls of a server that was started with --development.</summary>
        private static async Task Switch(Stand stand, string fault)
        {
            using var http = new HttpClient();
            var address = $"http://{stand.Address.Endpoint.Authority}/$faults/stores/{Store}";
            using var request = new HttpRequestMessage(HttpMethod.Put, address)
            {
                Content = new StringContent($"{{\"fault\": \"{fault}\"}}", Encoding.UTF8, "application/json"),
            };
            var token = Stand.Setting("BENDYBUS_OWNER_TOKEN");
            request.Headers.TryAddWithoutValidation("Authorization", $"Bearer {token}");
            using var response = await http.SendAsync(request);
            Expect.True(response.IsSuccessStatusCode, $"{Store} is made to {fault}: {(int)response.StatusCode}");
        }
    }
}
