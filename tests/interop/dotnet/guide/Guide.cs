using System;
using System.Collections.Generic;
using System.Threading;
using System.Threading.Tasks;
using Azure.Core;
using Azure.Messaging.ServiceBus;
using Azure.Messaging.ServiceBus.Administration;

/// <summary>Does what docs/guides/dotnet.md shows. Its snippets are the other part, which snippets.py writes.</summary>
public static partial class Guide
{
    public static async Task<int> Main()
    {
        var failed = 0;
        var shown = new List<(string Name, Func<Task> Run)>(Snippets)
        {
            ("Tokens of an identity provider", ClientsWithTokensWork),
            ("A broker for your tests, with xUnit", TheFixtureForXunitWorks),
            ("A broker for your tests, with NUnit", TheFixtureForNUnitWorks),
        };
        foreach (var (name, run) in shown)
        {
            try
            {
                await run();
                Console.WriteLine($"passed  guide: {name}");
            }
            catch (Exception problem)
            {
                failed++;
                Console.WriteLine($"FAILED  guide: {name}\n    {problem.GetType().Name}: {problem.Message}");
            }
        }
        Console.WriteLine($".NET, guide: {shown.Count - failed} passed, {failed} failed");
        return failed == 0 ? 0 : 1;
    }

    private static async Task ClientsWithTokensWork()
    {
        await using var client = WithToken.Connect(new Issued());
        await client.CreateSender("orders").SendMessageAsync(new ServiceBusMessage("with a token"));
    }

    private static async Task TheFixtureForXunitWorks()
    {
        var fixture = new BrokerFixture();
        await fixture.InitializeAsync();
        await BrokerWorks(fixture.Broker);
        await fixture.DisposeAsync();
    }

    private static async Task TheFixtureForNUnitWorks()
    {
        var fixture = new BrokerSetUp();
        await fixture.Start();
        await BrokerWorks(BrokerSetUp.Broker);
        await fixture.Stop();
    }

    private static async Task BrokerWorks(Broker broker)
    {
        var administration = new ServiceBusAdministrationClient(broker.ConnectionString);
        await administration.CreateQueueAsync("orders");
        await using var client = new ServiceBusClient(broker.ConnectionString);
        await client.CreateSender("orders").SendMessageAsync(new ServiceBusMessage("hello"));
        var message = await client.CreateReceiver("orders").ReceiveMessageAsync();
        if (message?.Body.ToString() != "hello")
        {
            throw new InvalidOperationException("The message did not come back.");
        }
    }

    private sealed class Issued : TokenCredential
    {
        private readonly string token = Environment.GetEnvironmentVariable("BENDYBUS_OWNER_TOKEN");

        public override AccessToken GetToken(TokenRequestContext context, CancellationToken cancellation) =>
            new AccessToken(token, DateTimeOffset.UtcNow.AddMinutes(30));

        public override ValueTask<AccessToken> GetTokenAsync(
            TokenRequestContext context, CancellationToken cancellation) =>
            new ValueTask<AccessToken>(GetToken(context, cancellation));
    }
}
