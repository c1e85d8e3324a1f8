// Package interop has the unmodified Go SDK against a real server. Run by run.py.
package interop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

var (
	// Plain TCP, as with the emulator: the flag in the connection string asks for it.
	plainTCP = os.Getenv("BENDYBUS_CONNECTION_STRING")
	// TLS, and what the administration client always speaks; the port is kept.
	overTLS = strings.TrimSuffix(plainTCP, ";UseDevelopmentEmulator=true")

	numbers atomic.Int32
)

// Everything is shown on both, since a receiver cannot tell the difference (P-05).
var kinds = map[string]bool{"unpartitioned": false, "partitioned": true}

func onEachKind(t *testing.T, work func(t *testing.T, partitioned bool)) {
	for name, partitioned := range kinds {
		t.Run(name, func(t *testing.T) { work(t, partitioned) })
	}
}

func newName(prefix string) string {
	return fmt.Sprintf("go-%s%d", prefix, numbers.Add(1))
}

// Long enough for a loaded machine; who waits for something that comes does not wait so long.
func patience(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func administration(t *testing.T) *admin.Client {
	client, err := admin.NewClientFromConnectionString(overTLS, nil)
	check(t, err)
	return client
}

func connect(t *testing.T, connectionString string) *azservicebus.Client {
	// A refusal is to be seen, not retried.
	once := azservicebus.RetryOptions{MaxRetries: -1}
	client, err := azservicebus.NewClientFromConnectionString(
		connectionString, &azservicebus.ClientOptions{RetryOptions: once})
	check(t, err)
	t.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

func newQueue(t *testing.T, partitioned bool, properties admin.QueueProperties) string {
	name := newName("q")
	properties.EnablePartitioning = to.Ptr(partitioned)
	_, err := administration(t).CreateQueue(patience(t), name, &admin.CreateQueueOptions{Properties: &properties})
	check(t, err)
	return name
}

func newTopic(t *testing.T, partitioned bool, subscriptions ...string) string {
	name := newName("t")
	properties := admin.TopicProperties{EnablePartitioning: to.Ptr(partitioned)}
	_, err := administration(t).CreateTopic(patience(t), name, &admin.CreateTopicOptions{Properties: &properties})
	check(t, err)
	for _, subscription := range subscriptions {
		_, err := administration(t).CreateSubscription(patience(t), name, subscription, nil)
		check(t, err)
	}
	return name
}

type receiver interface {
	ReceiveMessages(context.Context, int, *azservicebus.ReceiveMessagesOptions) ([]*azservicebus.ReceivedMessage, error)
}

func receive(t *testing.T, from receiver, count int) []*azservicebus.ReceivedMessage {
	t.Helper()
	var messages []*azservicebus.ReceivedMessage
	for len(messages) < count {
		more, err := from.ReceiveMessages(patience(t), count-len(messages), nil)
		check(t, err)
		messages = append(messages, more...)
	}
	return messages
}

func bodies(messages []*azservicebus.ReceivedMessage) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.Body))
	}
	return found
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, expected, found any) {
	t.Helper()
	if !reflect.DeepEqual(expected, found) {
		t.Fatalf("expected %#v, found %#v", expected, found)
	}
}

func holds(t *testing.T, claim bool, what string) {
	t.Helper()
	if !claim {
		t.Fatal(what)
	}
}

func refusedAs(t *testing.T, code azservicebus.Code, err error) {
	t.Helper()
	var refused *azservicebus.Error
	if !errors.As(err, &refused) || refused.Code != code {
		t.Fatalf("expected %s, found %v", code, err)
	}
}
