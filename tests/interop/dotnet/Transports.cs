using System;
using System.Security.Cryptography;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using Azure;
using Azure.Core;
using Azure.Core.Pipeline;
using Azure.Messaging.ServiceBus;
using Azure.Messaging.ServiceBus.Administration;

namespace Bendybus.Interop
{
    /// <summary>Ways to the broker, and who may go them.</summary>
    public static class Transports
    {
        [Check]
        public static async Task WebSockets(Stand stand) =>
            await Works(stand, stand.Connect(options =>
                options.TransportType = ServiceBusTransportType.AmqpWebSockets));

        [Check]
        public static async Task WebSockets_over_TLS(Stand stand) =>
            await Works(stand, new ServiceBusClient(
                OverTls(stand),
                Stand.Options(options =>
                {
                    options.TransportType = ServiceBusTransportType.AmqpWebSockets;
                    options.CustomEndpointAddress = Endpoint(stand);
                })));

        [Check]
        public static async Task TLS(Stand stand) =>
            await Works(stand, new ServiceBusClient(
                OverTls(stand), Stand.Options(options => options.CustomEndpointAddress = Endpoint(stand))));

        [Check]
        public static async Task Administration_over_TLS(Stand stand)
        {
            var admin = new ServiceBusAdministrationClient(OverTls(stand), AtPort(stand));
            var queue = await stand.NewQueue();
            Expect.Equal(queue, (await admin.GetQueueAsync(queue)).Value.Name);
        }

        [Check]
        public static async Task A_key_credential(Stand stand) =>
            await Works(stand, new ServiceBusClient(
                stand.Address.FullyQualifiedNamespace,
                new AzureNamedKeyCredential(stand.Address.SharedAccessKeyName, stand.Address.SharedAccessKey),
                Stand.Options(options => options.CustomEndpointAddress = Endpoint(stand))));

        [Check]
        public static async Task A_shared_access_signature(Stand stand) =>
            await Works(stand, new ServiceBusClient(
                stand.Address.FullyQualifiedNamespace,
                new AzureSasCredential(Signature(stand)),
                Stand.Options(options => options.CustomEndpointAddress = Endpoint(stand))));

        [Check]
        public static async Task The_token_of_an_issuer(Stand stand) =>
            await Works(stand, WithToken(stand, "BENDYBUS_OWNER_TOKEN"));

        [Check]
        public static async Task The_token_of_an_issuer_over_WebSockets(Stand stand) =>
            await Works(stand, WithToken(
                stand,
                "BENDYBUS_OWNER_TOKEN",
                options => options.TransportType = ServiceBusTransportType.AmqpWebSockets));

        [Check]
        public static async Task Roles_in_a_token_decide_what_it_is_good_for(Stand stand)
        {
            var queue = await stand.NewQueue();
            await using var sender = WithToken(stand, "BENDYBUS_SENDER_TOKEN");
            await using var receiver = WithToken(stand, "BENDYBUS_RECEIVER_TOKEN");
            await Stand.Send(sender, queue, new ServiceBusMessage("a"));
            await Expect.Throws<UnauthorizedAccessException>(
                () => sender.CreateReceiver(queue).ReceiveMessageAsync(Stand.Moment));
            Expect.Equal("a", (await Stand.ReceiveOne(receiver.CreateReceiver(queue))).Body.ToString());
            await Expect.Throws<UnauthorizedAccessException>(
                () => Stand.Send(receiver, queue, new ServiceBusMessage("b")));
        }

        [Check]
        public static async Task Administration_with_the_token_of_an_issuer(Stand stand)
        {
            var credential = new Issued(Stand.Setting("BENDYBUS_OWNER_TOKEN"));
            var admin = new ServiceBusAdministrationClient(
                stand.Address.FullyQualifiedNamespace, credential, AtPort(stand));
            var queue = await stand.NewQueue();
            Expect.Equal(queue, (await admin.GetQueueAsync(queue)).Value.Name);
        }

        [Check]
        public static async Task A_wrong_key_opens_nothing(Stand stand)
        {
            var queue = await stand.NewQueue();
            var wrong = stand.ConnectionString.Replace(stand.Address.SharedAccessKey, "d3Jvbmc=");
            await using var client = new ServiceBusClient(wrong, Stand.Options());
            await Expect.Throws<UnauthorizedAccessException>(
                () => Stand.Send(client, queue, new ServiceBusMessage("a")));
            var admin = new ServiceBusAdministrationClient(wrong);
            await Expect.Throws<UnauthorizedAccessException>(() => admin.GetQueueAsync(queue));
        }

        /// <summary>A message goes in and comes out.</summary>
        private static async Task Works(Stand stand, ServiceBusClient client)
        {
            await using (client)
            {
                var queue = await stand.NewQueue();
                await Stand.Send(client, queue, new ServiceBusMessage(new byte[100_000]));
                var receiver = client.CreateReceiver(queue);
                var message = await Stand.ReceiveOne(receiver);
                Expect.Equal(100_000, message.Body.ToArray().Length);
                await receiver.RenewMessageLockAsync(message);
                await receiver.CompleteMessageAsync(message);
            }
        }

        /// <summary>Without the flag that asks for plain TCP, the SDK speaks TLS; it drops the port, however.</summary>
        private static string OverTls(Stand stand) =>
            stand.ConnectionString.Replace(";UseDevelopmentEmulator=true", "");

        private static string Signature(Stand stand)
        {
            var resource = Uri.EscapeDataString($"sb://{stand.Address.FullyQualifiedNamespace}/");
            var end = DateTimeOffset.UtcNow.AddMinutes(30).ToUnixTimeSeconds();
            using var hash = new HMACSHA256(Encoding.UTF8.GetBytes(stand.Address.SharedAccessKey));
            var signed = Convert.ToBase64String(hash.ComputeHash(Encoding.UTF8.GetBytes($"{resource}\n{end}")));
            var name = stand.Address.SharedAccessKeyName;
            return $"SharedAccessSignature sr={resource}&sig={Uri.EscapeDataString(signed)}&se={end}&skn={name}";
        }

        private static Uri Endpoint(Stand stand) => stand.Address.Endpoint;

        private static ServiceBusClient WithToken(
            Stand stand, string setting, Action<ServiceBusClientOptions> with = null) =>
            new ServiceBusClient(
                stand.Address.FullyQualifiedNamespace,
                new Issued(Stand.Setting(setting)),
                Stand.Options(options =>
                {
                    options.CustomEndpointAddress = Endpoint(stand);
                    with?.Invoke(options);
                }));

        private static ServiceBusAdministrationClientOptions AtPort(Stand stand)
        {
            var options = new ServiceBusAdministrationClientOptions();
            options.AddPolicy(new PortPolicy(Endpoint(stand).Port), HttpPipelinePosition.PerCall);
            return options;
        }

        /// <summary>As Azure.Identity has them: gives a token when it is asked for one.</summary>
        private sealed class Issued : TokenCredential
        {
            private readonly AccessToken token;

            public Issued(string token)
            {
                this.token = new AccessToken(token, DateTimeOffset.UtcNow.AddMinutes(30));
            }

            public override AccessToken GetToken(TokenRequestContext context, CancellationToken cancellation) => token;

            public override ValueTask<AccessToken> GetTokenAsync(
                TokenRequestContext context, CancellationToken cancellation) => new ValueTask<AccessToken>(token);
        }

        /// <summary>Puts back the port, which the administration client drops where it speaks TLS.</summary>
        private sealed class PortPolicy : HttpPipelineSynchronousPolicy
        {
            private readonly int port;

            public PortPolicy(int port)
            {
                this.port = port;
            }

            public override void OnSendingRequest(HttpMessage message) => message.Request.Uri.Port = port;
        }
    }
}
