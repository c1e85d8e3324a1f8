using System;
using System.Collections.Generic;
using System.Linq;
using System.Text;
using System.Threading.Tasks;
using Azure.Core.Amqp;
using Azure.Messaging.ServiceBus;

namespace Bendybus.Interop
{
    /// <summary>What AMQP has and the SDK shows only in the raw message.</summary>
    public static class Bodies
    {
        [Check]
        public static async Task A_body_may_be_a_value(Stand stand)
        {
            var values = new object[]
            {
                "text", 42, 42L, 1.5, true, 'x', Guid.NewGuid(),
                new DateTime(2031, 2, 3, 4, 5, 6, DateTimeKind.Utc),
                new byte[] { 1, 2, 3 },
                new List<object> { 1, "two" },
                new Dictionary<string, object> { ["key"] = 1 },
            };
            var queue = await stand.NewQueue();
            var receiver = stand.Client.CreateReceiver(queue);
            foreach (var value in values)
            {
                await stand.Send(queue, Raw(AmqpMessageBody.FromValue(value)));
                var message = await Stand.ReceiveOne(receiver);
                Expect.True(message.GetRawAmqpMessage().Body.TryGetValue(out var received), "the body is a value");
                Expect.Equal(value, received);
                await receiver.CompleteMessageAsync(message);
            }
        }

        [Check]
        public static async Task A_body_may_be_sequences(Stand stand)
        {
            var sequences = new List<IList<object>>
            {
                new List<object> { 1, 2L, "three" },
                new List<object> { new DateTime(2031, 2, 3, 0, 0, 0, DateTimeKind.Utc), Guid.Empty, false },
            };
            var queue = await stand.NewQueue();
            await stand.Send(queue, Raw(AmqpMessageBody.FromSequence(sequences)));
            var body = (await stand.ReceiveOne(queue)).GetRawAmqpMessage().Body;
            Expect.True(body.TryGetSequence(out var received), "the body is sequences");
            Expect.Equal(sequences, received);
        }

        [Check]
        public static async Task A_body_may_be_several_pieces_of_data(Stand stand)
        {
            var pieces = new[] { "one", "two", "three" }
                .Select(text => new ReadOnlyMemory<byte>(Encoding.UTF8.GetBytes(text))).ToList();
            var queue = await stand.NewQueue();
            await stand.Send(queue, Raw(AmqpMessageBody.FromData(pieces)));
            var message = await stand.ReceiveOne(queue);
            Expect.True(message.GetRawAmqpMessage().Body.TryGetData(out var received), "the body is data");
            Expect.Equal(pieces.Select(piece => piece.ToArray()), received.Select(piece => piece.ToArray()));
            Expect.Equal("onetwothree", message.Body.ToString());
        }

        [Check]
        public static async Task Every_section_arrives(Stand stand)
        {
            var sent = new ServiceBusMessage("body");
            var raw = sent.GetRawAmqpMessage();
            raw.Header.Durable = true;
            raw.Header.Priority = 7;
            raw.MessageAnnotations["x-opt-own"] = "annotation";
            raw.DeliveryAnnotations["x-delivery"] = "delivery";
            raw.ApplicationProperties["application"] = "property";
            raw.Footer["footer"] = "foot";
            raw.Properties.UserId = Encoding.UTF8.GetBytes("user");
            raw.Properties.ContentEncoding = "utf-8";
            raw.Properties.GroupSequence = 3;
            var queue = await stand.NewQueue();
            await stand.Send(queue, sent);
            var received = (await stand.ReceiveOne(queue)).GetRawAmqpMessage();
            Expect.Equal((byte)7, received.Header.Priority);
            Expect.Equal("annotation", received.MessageAnnotations["x-opt-own"]);
            Expect.Equal("property", received.ApplicationProperties["application"]);
            Expect.Equal("foot", received.Footer["footer"]);
            Expect.Equal("user", Encoding.UTF8.GetString(received.Properties.UserId.Value.ToArray()));
            Expect.Equal("utf-8", received.Properties.ContentEncoding);
            Expect.Equal(3u, received.Properties.GroupSequence);
        }

        [Check]
        public static async Task A_received_message_is_sent_on_as_it_is(Stand stand)
        {
            var queue = await stand.NewQueue();
            var other = await stand.NewQueue();
            var first = new ServiceBusMessage("body") { MessageId = "id", PartitionKey = "key" };
            first.ApplicationProperties["number"] = 5L;
            await stand.Send(queue, first);
            await stand.Send(other, new ServiceBusMessage(await stand.ReceiveOne(queue)));
            var message = await stand.ReceiveOne(other);
            Expect.Equal("id", message.MessageId);
            Expect.Equal("key", message.PartitionKey);
            Expect.Equal(5L, message.ApplicationProperties["number"]);
            Expect.Equal("body", message.Body.ToString());
        }

        private static ServiceBusMessage Raw(AmqpMessageBody body) =>
            new ServiceBusMessage(new AmqpAnnotatedMessage(body));
    }
}
