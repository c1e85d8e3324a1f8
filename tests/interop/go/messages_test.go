package interop

import (
	"context"
	"crypto/tls"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func openQueue(t *testing.T, client *azservicebus.Client, queue string) (*azservicebus.Sender, *azservicebus.Receiver) {
	sender, err := client.NewSender(queue, nil)
	check(t, err)
	receiver, err := client.NewReceiverForQueue(queue, nil)
	check(t, err)
	return sender, receiver
}

func TestWhatIsSentIsReceivedWithAllItsProperties(t *testing.T) { // P-05 P-12
	onEachKind(t, func(t *testing.T, partitioned bool) {
		sender, receiver := openQueue(t, connect(t, plainTCP), newQueue(t, partitioned, admin.QueueProperties{}))
		sent := azservicebus.Message{
			ApplicationProperties: map[string]any{"text": "v", "number": int64(5), "flag": true},
			Body:                  []byte("x"),
			ContentType:           to.Ptr("t"), CorrelationID: to.Ptr("c"), MessageID: to.Ptr("1"), PartitionKey: to.Ptr("k"),
			ReplyTo: to.Ptr("r"), ReplyToSessionID: to.Ptr("rs"), Subject: to.Ptr("s"), To: to.Ptr("to"),
			TimeToLive: to.Ptr(time.Hour),
		}
		check(t, sender.SendMessage(patience(t), &sent, nil))
		found := receive(t, receiver, 1)[0]
		equal(t, sent, *found.Message())
		// This SDK counts the delivery under way; the others do not.
		equal(t, uint32(1), found.DeliveryCount)
		holds(t, found.LockedUntil.After(*found.EnqueuedTime), "locked")
		check(t, receiver.RenewMessageLock(patience(t), found, nil))
		check(t, receiver.CompleteMessage(patience(t), found, nil))
		peeked, err := receiver.PeekMessages(patience(t), 10, nil)
		check(t, err)
		equal(t, 0, len(peeked))
	})
}

func TestABatchStaysTogether(t *testing.T) { // P-18
	onEachKind(t, func(t *testing.T, partitioned bool) {
		sender, receiver := openQueue(t, connect(t, plainTCP), newQueue(t, partitioned, admin.QueueProperties{}))
		batch, err := sender.NewMessageBatch(patience(t), nil)
		check(t, err)
		for _, body := range []string{"a", "b", "c"} {
			check(t, batch.AddMessage(&azservicebus.Message{Body: []byte(body)}, nil))
		}
		check(t, sender.SendMessageBatch(patience(t), batch, nil))
		messages := receive(t, receiver, 3)
		equal(t, []string{"a", "b", "c"}, bodies(messages))
		equal(t, *messages[0].SequenceNumber>>48, *messages[2].SequenceNumber>>48)
	})
}

func TestMessagesAreSettledInEveryWay(t *testing.T) { // P-05
	onEachKind(t, func(t *testing.T, partitioned bool) {
		client, queue := connect(t, plainTCP), newQueue(t, partitioned, admin.QueueProperties{})
		sender, receiver := openQueue(t, client, queue)
		check(t, sender.SendMessage(patience(t), &azservicebus.Message{Body: []byte("x")}, nil))
		changed := azservicebus.AbandonMessageOptions{PropertiesToModify: map[string]any{"why": "because"}}
		check(t, receiver.AbandonMessage(patience(t), receive(t, receiver, 1)[0], &changed))
		again := receive(t, receiver, 1)[0]
		equal(t, uint32(2), again.DeliveryCount)
		equal(t, "because", again.ApplicationProperties["why"])
		check(t, receiver.DeferMessage(patience(t), again, nil))
		deferred, err := receiver.ReceiveDeferredMessages(patience(t), []int64{*again.SequenceNumber}, nil)
		check(t, err)
		why := azservicebus.DeadLetterOptions{Reason: to.Ptr("R"), ErrorDescription: to.Ptr("D")}
		check(t, receiver.DeadLetterMessage(patience(t), deferred[0], &why))
		letters, err := client.NewReceiverForQueue(queue, &azservicebus.ReceiverOptions{
			SubQueue: azservicebus.SubQueueDeadLetter, ReceiveMode: azservicebus.ReceiveModeReceiveAndDelete})
		check(t, err)
		letter := receive(t, letters, 1)[0]
		equal(t, []string{"R", "D"}, []string{*letter.DeadLetterReason, *letter.DeadLetterErrorDescription})
	})
}

func TestMessagesAreScheduledAndCancelled(t *testing.T) { // P-35
	onEachKind(t, func(t *testing.T, partitioned bool) {
		sender, receiver := openQueue(t, connect(t, plainTCP), newQueue(t, partitioned, admin.QueueProperties{}))
		later := []*azservicebus.Message{{Body: []byte("one")}, {Body: []byte("two")}}
		numbers, err := sender.ScheduleMessages(patience(t), later, time.Now().Add(time.Hour), nil)
		check(t, err)
		check(t, sender.CancelScheduledMessages(patience(t), numbers[:1], nil))
		peeked, err := receiver.PeekMessages(patience(t), 10, nil)
		check(t, err)
		equal(t, []string{"two"}, bodies(peeked))
		equal(t, azservicebus.MessageStateScheduled, peeked[0].State)
		soon := []*azservicebus.Message{{Body: []byte("soon")}}
		_, err = sender.ScheduleMessages(patience(t), soon, time.Now().Add(time.Second), nil)
		check(t, err)
		equal(t, []string{"soon"}, bodies(receive(t, receiver, 1)))
	})
}

func TestSessionsAreAcceptedRememberedAndListed(t *testing.T) { // P-13 P-35
	onEachKind(t, func(t *testing.T, partitioned bool) {
		client := connect(t, plainTCP)
		queue := newQueue(t, partitioned, admin.QueueProperties{RequiresSession: to.Ptr(true)})
		sender, err := client.NewSender(queue, nil)
		check(t, err)
		for _, body := range []string{"a1", "a2", "b1"} {
			message := azservicebus.Message{Body: []byte(body), SessionID: to.Ptr(body[:1])}
			check(t, sender.SendMessage(patience(t), &message, nil))
		}
		named, err := client.AcceptSessionForQueue(patience(t), queue, "a", nil)
		check(t, err)
		messages := receive(t, named, 2)
		equal(t, []string{"a1", "a2"}, bodies(messages))
		check(t, named.SetSessionState(patience(t), []byte("state"), nil))
		state, err := named.GetSessionState(patience(t), nil)
		check(t, err)
		equal(t, "state", string(state))
		check(t, named.RenewSessionLock(patience(t), nil))
		holds(t, named.LockedUntil().After(time.Now()), "renewed")
		check(t, named.CompleteMessage(patience(t), messages[0], nil))
		check(t, named.DeferMessage(patience(t), messages[1], nil))
		deferred, err := named.ReceiveDeferredMessages(patience(t), []int64{*messages[1].SequenceNumber}, nil)
		check(t, err)
		check(t, named.CompleteMessage(patience(t), deferred[0], nil))
		next, err := client.AcceptNextSessionForQueue(patience(t), queue, nil)
		check(t, err)
		equal(t, "b", next.SessionID())
		_, err = client.AcceptSessionForQueue(patience(t), queue, "a", nil)
		holds(t, err != nil, "a session is accepted once")
		found := []string{}
		for pager := client.NewListSessionsForQueuePager(queue, nil); pager.More(); {
			page, err := pager.NextPage(patience(t))
			check(t, err)
			found = append(found, page.Sessions...)
		}
		slices.Sort(found)
		equal(t, []string{"a", "b"}, found)
		check(t, named.Close(patience(t)))
		check(t, next.Close(patience(t)))
	})
}

func TestWithoutASessionTheWaitEnds(t *testing.T) {
	queue := newQueue(t, true, admin.QueueProperties{RequiresSession: to.Ptr(true)})
	brief, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	_, err := connect(t, plainTCP).AcceptNextSessionForQueue(brief, queue, nil)
	holds(t, err != nil, "there is none")
}

func TestSubscriptionsGetWhatTheirRulesSay(t *testing.T) { // P-01
	onEachKind(t, func(t *testing.T, partitioned bool) {
		client, topic := connect(t, plainTCP), newTopic(t, partitioned, "all")
		red := admin.SubscriptionProperties{DefaultRule: &admin.RuleProperties{
			Name: "red", Filter: &admin.SQLFilter{Expression: "colour = 'red'"}, Action: &admin.SQLAction{Expression: "SET seen = 1"}}}
		_, err := administration(t).CreateSubscription(patience(t), topic, "red", &admin.CreateSubscriptionOptions{Properties: &red})
		check(t, err)
		sender, err := client.NewSender(topic, nil)
		check(t, err)
		for _, colour := range []string{"red", "blue"} {
			message := azservicebus.Message{Body: []byte(colour), ApplicationProperties: map[string]any{"colour": colour}}
			check(t, sender.SendMessage(patience(t), &message, nil))
		}
		all, err := client.NewReceiverForSubscription(topic, "all", nil)
		check(t, err)
		found := bodies(receive(t, all, 2))
		slices.Sort(found)
		equal(t, []string{"blue", "red"}, found)
		chosen, err := client.NewReceiverForSubscription(topic, "red", nil)
		check(t, err)
		message := receive(t, chosen, 1)[0]
		equal(t, "red", string(message.Body))
		holds(t, message.ApplicationProperties["seen"] != nil, "the action")
		check(t, chosen.DeadLetterMessage(patience(t), message, nil))
		letters, err := client.NewReceiverForSubscription(topic, "red", &azservicebus.ReceiverOptions{SubQueue: azservicebus.SubQueueDeadLetter})
		check(t, err)
		equal(t, []string{"red"}, bodies(receive(t, letters, 1)))
	})
}

func TestTLSIsSpokenOnTheSamePort(t *testing.T) { // B-10
	// Where there is a port the SDK takes it for a part of the name to verify, so the name has to be said.
	named := &azservicebus.ClientOptions{TLSConfig: &tls.Config{ServerName: "localhost"}}
	client, err := azservicebus.NewClientFromConnectionString(overTLS, named)
	check(t, err)
	defer func() { _ = client.Close(context.Background()) }()
	sender, receiver := openQueue(t, client, newQueue(t, true, admin.QueueProperties{}))
	check(t, sender.SendMessage(patience(t), &azservicebus.Message{Body: []byte("over TLS")}, nil))
	equal(t, []string{"over TLS"}, bodies(receive(t, receiver, 1)))
}

func TestWhatIsMissingIsNamed(t *testing.T) {
	sender, err := connect(t, plainTCP).NewSender("nowhere", nil)
	check(t, err)
	var refused *azservicebus.Error
	err = sender.SendMessage(patience(t), &azservicebus.Message{}, nil)
	holds(t, errors.As(err, &refused) && refused.Code == azservicebus.CodeNotFound, "not found")
}

func TestALostLockIsNamed(t *testing.T) {
	sender, receiver := openQueue(t, connect(t, plainTCP), newQueue(t, true, admin.QueueProperties{}))
	check(t, sender.SendMessage(patience(t), &azservicebus.Message{Body: []byte("x")}, nil))
	message := receive(t, receiver, 1)[0]
	check(t, receiver.CompleteMessage(patience(t), message, nil))
	refusedAs(t, azservicebus.CodeLockLost, receiver.RenewMessageLock(patience(t), message, nil))
}
