package interop

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus"
	"github.com/Azure/azure-sdk-for-go/sdk/messaging/azservicebus/admin"
)

func statusOf(err error) int {
	var refused *azcore.ResponseError
	if errors.As(err, &refused) {
		return refused.StatusCode
	}
	return 0
}

func TestTheNamespaceIsDescribed(t *testing.T) {
	found, err := administration(t).GetNamespaceProperties(patience(t), nil)
	check(t, err)
	equal(t, "Standard", found.SKU)
	holds(t, found.Name != "", "a name")
	holds(t, time.Since(found.CreatedTime) < time.Hour, "made a moment ago")
}

func TestAQueueHasWhatItWasMadeWith(t *testing.T) { // P-01 P-06 P-08
	onEachKind(t, func(t *testing.T, partitioned bool) {
		client, name, target := administration(t), newName("q"), newName("q")
		_, err := client.CreateQueue(patience(t), target, nil)
		check(t, err)
		size := int32(2048)
		properties := admin.QueueProperties{
			LockDuration:                        to.Ptr("PT45S"),
			MaxSizeInMegabytes:                  to.Ptr(size),
			RequiresDuplicateDetection:          to.Ptr(true),
			RequiresSession:                     to.Ptr(true),
			DefaultMessageTimeToLive:            to.Ptr("P3D"),
			DeadLetteringOnMessageExpiration:    to.Ptr(true),
			DuplicateDetectionHistoryTimeWindow: to.Ptr("PT5M"),
			MaxDeliveryCount:                    to.Ptr(int32(7)),
			EnableBatchedOperations:             to.Ptr(false),
			Status:                              to.Ptr(admin.EntityStatusSendDisabled),
			AutoDeleteOnIdle:                    to.Ptr("PT2H"),
			EnablePartitioning:                  to.Ptr(partitioned),
			ForwardDeadLetteredMessagesTo:       to.Ptr(target),
			UserMetadata:                        to.Ptr("über <&>"),
			AuthorizationRules: []admin.AuthorizationRule{{
				KeyName:      to.Ptr("Reader"),
				AccessRights: []admin.AccessRight{admin.AccessRightListen, admin.AccessRightSend},
				PrimaryKey:   to.Ptr("a-primary-key-of-its-own"),
				SecondaryKey: to.Ptr("a-second-key-of-its-own"),
			}},
		}
		_, err = client.CreateQueue(patience(t), name, &admin.CreateQueueOptions{Properties: &properties})
		check(t, err)
		answer, err := client.GetQueue(patience(t), name, nil)
		check(t, err)
		found := answer.QueueProperties
		equal(t, name, answer.QueueName)
		if partitioned {
			size *= 16
		}
		equal(t, size, *found.MaxSizeInMegabytes)
		holds(t, strings.HasSuffix(*found.ForwardDeadLetteredMessagesTo, target), *found.ForwardDeadLetteredMessagesTo)
		rule := found.AuthorizationRules[0]
		equal(t, "Reader", *rule.KeyName)
		equal(t, "a-primary-key-of-its-own", *rule.PrimaryKey)
		equal(t, "a-second-key-of-its-own", *rule.SecondaryKey)
		equal(t, 2, len(rule.AccessRights))
		// The rest as it was asked for.
		found.MaxSizeInMegabytes, found.MaxMessageSizeInKilobytes = properties.MaxSizeInMegabytes, nil
		found.ForwardDeadLetteredMessagesTo = properties.ForwardDeadLetteredMessagesTo
		found.AuthorizationRules = properties.AuthorizationRules
		equal(t, properties, found)
	})
}

func TestAQueueIsUpdatedAndDeleted(t *testing.T) { // P-07 P-32
	onEachKind(t, func(t *testing.T, partitioned bool) {
		client, name := administration(t), newQueue(t, partitioned, admin.QueueProperties{})
		found, err := client.GetQueue(patience(t), name, nil)
		check(t, err)
		changed := found.QueueProperties
		changed.MaxDeliveryCount = to.Ptr(int32(3))
		changed.Status = to.Ptr(admin.EntityStatusDisabled)
		updated, err := client.UpdateQueue(patience(t), name, changed, nil)
		check(t, err)
		equal(t, int32(3), *updated.MaxDeliveryCount)
		equal(t, admin.EntityStatusDisabled, *updated.Status)
		changed.EnablePartitioning = to.Ptr(!partitioned)
		_, err = client.UpdateQueue(patience(t), name, changed, nil)
		equal(t, http.StatusBadRequest, statusOf(err))
		_, err = client.DeleteQueue(patience(t), name, nil)
		check(t, err)
		// What is missing is not an error to this client.
		gone, err := client.GetQueue(patience(t), name, nil)
		check(t, err)
		holds(t, gone == nil, "deleted")
		_, err = client.DeleteQueue(patience(t), name, nil)
		equal(t, http.StatusNotFound, statusOf(err))
		_, err = client.UpdateQueue(patience(t), name, found.QueueProperties, nil)
		equal(t, http.StatusNotFound, statusOf(err))
	})
}

func TestATopicIsMadeUpdatedAndDeleted(t *testing.T) { // P-01 P-32
	onEachKind(t, func(t *testing.T, partitioned bool) {
		client, name := administration(t), newName("t")
		properties := admin.TopicProperties{
			MaxSizeInMegabytes:                  to.Ptr(int32(1024)),
			RequiresDuplicateDetection:          to.Ptr(true),
			DefaultMessageTimeToLive:            to.Ptr("P3D"),
			DuplicateDetectionHistoryTimeWindow: to.Ptr("PT5M"),
			EnableBatchedOperations:             to.Ptr(false),
			Status:                              to.Ptr(admin.EntityStatusActive),
			AutoDeleteOnIdle:                    to.Ptr("PT2H"),
			EnablePartitioning:                  to.Ptr(partitioned),
			SupportOrdering:                     to.Ptr(!partitioned),
			UserMetadata:                        to.Ptr("m"),
		}
		_, err := client.CreateTopic(patience(t), name, &admin.CreateTopicOptions{Properties: &properties})
		check(t, err)
		answer, err := client.GetTopic(patience(t), name, nil)
		check(t, err)
		found := answer.TopicProperties
		equal(t, name, answer.TopicName)
		found.MaxSizeInMegabytes, found.MaxMessageSizeInKilobytes = properties.MaxSizeInMegabytes, nil
		found.AuthorizationRules = nil
		equal(t, properties, found)
		changed := answer.TopicProperties
		changed.UserMetadata = to.Ptr("changed")
		updated, err := client.UpdateTopic(patience(t), name, changed, nil)
		check(t, err)
		equal(t, "changed", *updated.UserMetadata)
		_, err = client.DeleteTopic(patience(t), name, nil)
		check(t, err)
		gone, err := client.GetTopic(patience(t), name, nil)
		check(t, err)
		holds(t, gone == nil, "deleted")
	})
}

func TestASubscriptionIsMadeUpdatedAndDeleted(t *testing.T) { // P-01 P-32
	onEachKind(t, func(t *testing.T, partitioned bool) {
		client, topic, target := administration(t), newTopic(t, partitioned), newQueue(t, partitioned, admin.QueueProperties{})
		properties := admin.SubscriptionProperties{
			LockDuration:                                    to.Ptr("PT45S"),
			RequiresSession:                                 to.Ptr(false),
			DefaultMessageTimeToLive:                        to.Ptr("P3D"),
			DeadLetteringOnMessageExpiration:                to.Ptr(true),
			EnableDeadLetteringOnFilterEvaluationExceptions: to.Ptr(false),
			MaxDeliveryCount:                                to.Ptr(int32(7)),
			Status:                                          to.Ptr(admin.EntityStatusActive),
			AutoDeleteOnIdle:                                to.Ptr("PT2H"),
			ForwardTo:                                       to.Ptr(target),
			EnableBatchedOperations:                         to.Ptr(false),
			UserMetadata:                                    to.Ptr("m"),
			DefaultRule:                                     &admin.RuleProperties{Name: "red", Filter: &admin.SQLFilter{Expression: "colour = 'red'"}},
		}
		_, err := client.CreateSubscription(patience(t), topic, "s", &admin.CreateSubscriptionOptions{Properties: &properties})
		check(t, err)
		answer, err := client.GetSubscription(patience(t), topic, "s", nil)
		check(t, err)
		found := answer.SubscriptionProperties
		equal(t, []string{topic, "s"}, []string{answer.TopicName, answer.SubscriptionName})
		holds(t, strings.HasSuffix(*found.ForwardTo, target), *found.ForwardTo)
		rule, err := client.GetRule(patience(t), topic, "s", "red", nil)
		check(t, err)
		equal(t, "colour = 'red'", rule.Filter.(*admin.SQLFilter).Expression)
		// As on Azure, an entity that forwards is never idle.
		equal(t, "P10675199DT2H48M5.4775807S", *found.AutoDeleteOnIdle)
		found.AutoDeleteOnIdle = properties.AutoDeleteOnIdle
		found.ForwardTo, found.DefaultRule = properties.ForwardTo, properties.DefaultRule
		equal(t, properties, found)
		changed := answer.SubscriptionProperties
		changed.MaxDeliveryCount = to.Ptr(int32(2))
		updated, err := client.UpdateSubscription(patience(t), topic, "s", changed, nil)
		check(t, err)
		equal(t, int32(2), *updated.MaxDeliveryCount)
		_, err = client.DeleteSubscription(patience(t), topic, "s", nil)
		check(t, err)
		gone, err := client.GetSubscription(patience(t), topic, "s", nil)
		check(t, err)
		holds(t, gone == nil, "deleted")
	})
}

func TestRulesOfEveryKindAreMadeUpdatedAndDeleted(t *testing.T) { // P-01
	onEachKind(t, func(t *testing.T, partitioned bool) {
		client, topic := administration(t), newTopic(t, partitioned, "s")
		at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
		rules := map[string]admin.RuleProperties{
			"sql": {
				Filter: &admin.SQLFilter{Expression: "size > @limit", Parameters: map[string]any{"@limit": float64(3)}},
				Action: &admin.SQLAction{Expression: "SET painted = @colour", Parameters: map[string]any{"@colour": "red"}},
			},
			"true":  {Filter: &admin.TrueFilter{}},
			"false": {Filter: &admin.FalseFilter{}},
			"correlated": {Filter: &admin.CorrelationFilter{
				ContentType: to.Ptr("t"), CorrelationID: to.Ptr("c"), MessageID: to.Ptr("m"), ReplyTo: to.Ptr("r"),
				ReplyToSessionID: to.Ptr("rs"), SessionID: to.Ptr("s"), Subject: to.Ptr("l"), To: to.Ptr("to"),
				ApplicationProperties: map[string]any{
					"text": "five", "number": float64(5), "flag": true, "at": at,
				},
			}},
		}
		for name, rule := range rules {
			options := admin.CreateRuleOptions{Name: to.Ptr(name), Filter: rule.Filter, Action: rule.Action}
			_, err := client.CreateRule(patience(t), topic, "s", &options)
			check(t, err)
			rule.Name = name
			found, err := client.GetRule(patience(t), topic, "s", name, nil)
			check(t, err)
			equal(t, rule.Filter, found.Filter)
			equal(t, rule.Action, found.Action)
		}
		changed := admin.RuleProperties{Name: "sql", Filter: &admin.SQLFilter{Expression: "size > 5"}}
		_, err := client.UpdateRule(patience(t), topic, "s", changed)
		check(t, err)
		_, err = client.DeleteRule(patience(t), topic, "s", "$Default", nil)
		check(t, err)
		names := []string{}
		for pager := client.NewListRulesPager(topic, "s", nil); pager.More(); {
			page, err := pager.NextPage(patience(t))
			check(t, err)
			for _, rule := range page.Rules {
				names = append(names, rule.Name)
			}
		}
		slices.Sort(names)
		equal(t, []string{"correlated", "false", "sql", "true"}, names)
		gone, err := client.GetRule(patience(t), topic, "s", "$Default", nil)
		check(t, err)
		holds(t, gone == nil, "deleted")
		bad := admin.CreateRuleOptions{Name: to.Ptr("bad"), Filter: &admin.SQLFilter{Expression: "a = = b"}}
		_, err = client.CreateRule(patience(t), topic, "s", &bad)
		equal(t, http.StatusBadRequest, statusOf(err))
	})
}

func TestCountsAreAddedUp(t *testing.T) { // P-33
	onEachKind(t, func(t *testing.T, partitioned bool) {
		queue, topic := newQueue(t, partitioned, admin.QueueProperties{}), newTopic(t, partitioned, "s")
		sender, err := connect(t, plainTCP).NewSender(queue, nil)
		check(t, err)
		for range 5 {
			check(t, sender.SendMessage(patience(t), &azservicebus.Message{Body: []byte("x")}, nil))
		}
		later := []*azservicebus.Message{{Body: []byte("later")}}
		_, err = sender.ScheduleMessages(patience(t), later, time.Now().Add(time.Hour), nil)
		check(t, err)
		publisher, err := connect(t, plainTCP).NewSender(topic, nil)
		check(t, err)
		check(t, publisher.SendMessage(patience(t), &azservicebus.Message{Body: []byte("news")}, nil))
		client := administration(t)
		counted, err := client.GetQueueRuntimeProperties(patience(t), queue, nil)
		check(t, err)
		equal(t, []int32{5, 1, 0}, []int32{
			counted.ActiveMessageCount, counted.ScheduledMessageCount, counted.DeadLetterMessageCount})
		equal(t, int64(6), counted.TotalMessageCount)
		holds(t, counted.SizeInBytes > 0 && !counted.CreatedAt.After(counted.AccessedAt), "size and times")
		topics, err := client.GetTopicRuntimeProperties(patience(t), topic, nil)
		check(t, err)
		equal(t, []int32{1, 1, 0}, []int32{
			topics.SubscriptionCount, topics.SQLFilterCount, topics.CorrelationFilterCount})
		subscription, err := client.GetSubscriptionRuntimeProperties(patience(t), topic, "s", nil)
		check(t, err)
		equal(t, int32(1), subscription.ActiveMessageCount)
	})
}

func TestListsHaveAllPages(t *testing.T) { // P-01
	client, topic := administration(t), newTopic(t, false)
	made := map[string]bool{}
	for number := range 7 {
		name := fmt.Sprintf("s%d", number)
		made[name] = true
		_, err := client.CreateSubscription(patience(t), topic, name, nil)
		check(t, err)
	}
	queues := []string{newQueue(t, false, admin.QueueProperties{}), newQueue(t, true, admin.QueueProperties{})}
	found := map[string]bool{}
	for pager := client.NewListSubscriptionsPager(topic, &admin.ListSubscriptionsOptions{MaxPageSize: 3}); pager.More(); {
		page, err := pager.NextPage(patience(t))
		check(t, err)
		holds(t, len(page.Subscriptions) <= 3, "pages are no larger than asked for")
		for _, subscription := range page.Subscriptions {
			found[subscription.SubscriptionName] = true
		}
	}
	equal(t, made, found)
	names := []string{}
	for pager := client.NewListQueuesPager(&admin.ListQueuesOptions{MaxPageSize: 2}); pager.More(); {
		page, err := pager.NextPage(patience(t))
		check(t, err)
		for _, queue := range page.Queues {
			names = append(names, queue.QueueName)
		}
	}
	for pager := client.NewListTopicsPager(nil); pager.More(); {
		page, err := pager.NextPage(patience(t))
		check(t, err)
		for _, topic := range page.Topics {
			names = append(names, topic.TopicName)
		}
	}
	for _, name := range append(queues, topic) {
		holds(t, slices.Contains(names, name), name)
	}
}

func TestListsOfCountsHaveAllPages(t *testing.T) { // P-33
	client, topic, queue := administration(t), newTopic(t, true, "s"), newQueue(t, true, admin.QueueProperties{})
	names := []string{}
	for pager := client.NewListQueuesRuntimePropertiesPager(nil); pager.More(); {
		page, err := pager.NextPage(patience(t))
		check(t, err)
		for _, item := range page.QueueRuntimeProperties {
			names = append(names, item.QueueName)
		}
	}
	for pager := client.NewListTopicsRuntimePropertiesPager(nil); pager.More(); {
		page, err := pager.NextPage(patience(t))
		check(t, err)
		for _, item := range page.TopicRuntimeProperties {
			names = append(names, item.TopicName)
		}
	}
	for pager := client.NewListSubscriptionsRuntimePropertiesPager(topic, nil); pager.More(); {
		page, err := pager.NextPage(patience(t))
		check(t, err)
		for _, item := range page.SubscriptionRuntimeProperties {
			names = append(names, item.SubscriptionName)
		}
	}
	for _, name := range []string{topic, queue, "s"} {
		holds(t, slices.Contains(names, name), name)
	}
}

func TestRefusalsHaveTheirStatus(t *testing.T) { // P-07
	client, queue := administration(t), newQueue(t, true, admin.QueueProperties{})
	_, err := client.CreateQueue(patience(t), queue, nil)
	equal(t, http.StatusConflict, statusOf(err))
	long := admin.QueueProperties{LockDuration: to.Ptr("PT6M")}
	_, err = client.CreateQueue(patience(t), newName("q"), &admin.CreateQueueOptions{Properties: &long})
	equal(t, http.StatusBadRequest, statusOf(err))
	_, err = client.CreateSubscription(patience(t), "nowhere", "s", nil)
	equal(t, http.StatusNotFound, statusOf(err))
}
