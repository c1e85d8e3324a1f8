using System;
using System.Collections.Generic;
using System.Diagnostics;
using System.Globalization;
using System.Linq;
using System.Threading.Tasks;
using Azure.Messaging.ServiceBus;

/// <summary>Azure.Messaging.ServiceBus end to end: sends and receives at the same time, and counts what came.</summary>
/// <remarks>
/// Arguments: connection string, queue, count, and `batches` (a hundred to a call, each completed) or `processor`
/// (a ServiceBusProcessor that handles one message at a time). Prints a line of JSON; the exit status is 1 when a
/// message was missing or came twice.
/// </remarks>
public static class Load
{
    private const int Batch = 100;

    // With nothing for this long, the rest is missing.
    private static readonly TimeSpan Idle = TimeSpan.FromSeconds(20);

    private static readonly byte[] Body = new byte[1024];

    public static async Task<int> Main(string[] arguments)
    {
        string queue = arguments[1];
        int count = int.Parse(arguments[2], CultureInfo.InvariantCulture);
        await using var client = new ServiceBusClient(arguments[0]);
        var received = new List<string>(count);
        var watch = new Stopwatch();
        if (arguments[3] == "processor")
        {
            await Process(client, queue, count, received, watch);
        }
        else
        {
            await Receive(client, queue, count, received, watch);
        }

        double seconds = watch.Elapsed.TotalSeconds;
        int distinct = received.Distinct().Count();
        int missing = count - distinct;
        int duplicates = received.Count - distinct;
        Console.WriteLine(FormattableString.Invariant(
            $"{{\"received\": {received.Count}, \"seconds\": {seconds}, \"rate\": {distinct / seconds}, ")
            + FormattableString.Invariant($"\"missing\": {missing}, \"duplicates\": {duplicates}}}"));
        return missing > 0 || duplicates > 0 ? 1 : 0;
    }

    private static async Task Send(ServiceBusClient client, string queue, int count)
    {
        await using ServiceBusSender sender = client.CreateSender(queue);
        for (int first = 0; first < count; first += Batch)
        {
            IEnumerable<int> numbers = Enumerable.Range(first, Math.Min(Batch, count - first));
            await sender.SendMessagesAsync(numbers.Select(
                number => new ServiceBusMessage(Body) { MessageId = number.ToString(CultureInfo.InvariantCulture) }));
        }
    }

    private static async Task Receive(
        ServiceBusClient client, string queue, int count, List<string> received, Stopwatch watch)
    {
        await using ServiceBusReceiver receiver = client.CreateReceiver(queue);
        watch.Start();
        Task sending = Send(client, queue, count);
        while (received.Count < count)
        {
            IReadOnlyList<ServiceBusReceivedMessage> messages = await receiver.ReceiveMessagesAsync(Batch, Idle);
            if (messages.Count == 0)
            {
                break;
            }

            received.AddRange(messages.Select(message => message.MessageId));
            await Task.WhenAll(messages.Select(message => receiver.CompleteMessageAsync(message)));
        }

        watch.Stop();
        await sending;
    }

    private static async Task Process(
        ServiceBusClient client, string queue, int count, List<string> received, Stopwatch watch)
    {
        var all = new TaskCompletionSource<bool>(TaskCreationOptions.RunContinuationsAsynchronously);
        var options = new ServiceBusProcessorOptions { MaxConcurrentCalls = 1 };
        await using ServiceBusProcessor processor = client.CreateProcessor(queue, options);
        var last = Stopwatch.StartNew();
        processor.ProcessMessageAsync += arguments =>
        {
            received.Add(arguments.Message.MessageId);
            last.Restart();
            if (received.Count == count)
            {
                watch.Stop();
                all.SetResult(true);
            }

            return Task.CompletedTask;
        };
        processor.ProcessErrorAsync += arguments =>
        {
            Console.Error.WriteLine(arguments.Exception.Message);
            return Task.CompletedTask;
        };
        await processor.StartProcessingAsync();
        watch.Start();
        await Send(client, queue, count);
        while (!all.Task.IsCompleted && last.Elapsed < Idle)
        {
            await Task.WhenAny(all.Task, Task.Delay(TimeSpan.FromSeconds(1)));
        }

        await processor.StopProcessingAsync();
    }
}
