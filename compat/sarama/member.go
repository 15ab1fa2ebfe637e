package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"headrace/compat/common"
)

// strategies are the ways in which a group's leader shares partitions out. All but the last are eager.
var strategies = map[string]func() sarama.BalanceStrategy{
	"range": sarama.NewBalanceStrategyRange, "round_robin": sarama.NewBalanceStrategyRoundRobin,
	"sticky": sarama.NewBalanceStrategySticky, "cooperative": sarama.NewBalanceStrategyCooperativeSticky,
}

// member is a consumer in a group that commits each record before it takes the next.
type member struct {
	name     string
	topic    string
	group    *common.Group
	consumer sarama.ConsumerGroup
	cancel   context.CancelFunc
	ended    chan struct{}

	mutex      sync.Mutex
	records    map[int32][]common.Record
	memberID   string
	generation int32
	claims     []int32
}

// groupConfig hears of rebalances soon, and is back soon when a broker was away.
func (d *driver) groupConfig(strategy string) *sarama.Config {
	config := d.config()
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategies[strategy]()}
	config.Consumer.Group.Rebalance.Retry.Backoff = 250 * time.Millisecond
	config.Consumer.Retry.Backoff = 250 * time.Millisecond
	config.Consumer.Offsets.AutoCommit.Enable = false
	return config
}

// join starts a member. Everything of one group has to be in the same common.Group.
func (d *driver) join(group *common.Group, topic, name string, config *sarama.Config) (*member, error) {
	consumer, err := sarama.NewConsumerGroup(d.addresses(), topic, config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	one := &member{
		name: name, topic: topic, group: group, consumer: consumer, cancel: cancel, ended: make(chan struct{}),
		records: map[int32][]common.Record{},
	}
	go one.run(ctx)
	go func() {
		for err := range consumer.Errors() {
			// Sarama tells of what it then tries again by itself. What it gives up is seen by what is missing.
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		}
	}()
	return one, nil
}

// run takes part in one session after the other, as Sarama wants it to be used.
func (m *member) run(ctx context.Context) {
	defer close(m.ended)
	for ctx.Err() == nil {
		if err := m.consumer.Consume(ctx, []string{m.topic}, m); err != nil && ctx.Err() == nil {
			fmt.Fprintf(os.Stderr, "%s: a session ended: %v\n", m.name, err)
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// Setup is called when a session begins.
func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.memberID, m.generation, m.claims = session.MemberID(), session.GenerationID(), session.Claims()[m.topic]
	return nil
}

// Cleanup is called when a session ends.
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim is called for each partition of the member, and returns when that is to be let go.
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	m.group.Take(m.name, claim.Topic(), claim.Partition())
	defer m.group.Give(m.name, claim.Topic(), claim.Partition())
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			m.keep(message)
			session.MarkMessage(message, "")
			session.Commit()
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) keep(message *sarama.ConsumerMessage) {
	place := common.GroupRecord{Topic: message.Topic, Partition: message.Partition, Offset: message.Offset}
	m.mutex.Lock()
	m.records[message.Partition] = append(m.records[message.Partition], asRecord(message))
	m.mutex.Unlock()
	m.group.Read(m.name, place)
}

// session returns what the member was told when its present session began.
func (m *member) session() (memberID string, generation int32, claims []int32) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return m.memberID, m.generation, m.claims
}

// stop ends the member. It leaves the group, unless it has an instance id.
func (m *member) stop() error {
	m.cancel()
	<-m.ended
	return m.consumer.Close()
}

func stopAll(members ...*member) {
	for _, one := range members {
		if one != nil {
			_ = one.stop()
		}
	}
}

// traffic is a producer that writes to all partitions of a topic until it is halted.
type traffic struct {
	ends   []int64
	halt   func()
	halted chan struct{}
	done   chan error
}

// startTraffic returns when records are under way. The caller halts it, or finishes it, which does the same.
func (d *driver) startTraffic(topic string, partitions int32) (*traffic, error) {
	producer, err := sarama.NewSyncProducer(d.addresses(), d.config())
	if err != nil {
		return nil, err
	}
	one := &traffic{ends: make([]int64, partitions), halted: make(chan struct{}), done: make(chan error, 1)}
	one.halt = sync.OnceFunc(func() { close(one.halted) })
	go func() {
		err := one.run(producer, topic, d.task.EpochMs)
		one.done <- errors.Join(err, producer.Close())
	}()
	return one, nil
}

func (t *traffic) run(producer sarama.SyncProducer, topic string, epochMs int64) error {
	for {
		var records []common.Record
		for partition := range t.ends {
			records = append(records, common.Record{Partition: int32(partition), TimestampMs: epochMs})
		}
		if err := producer.SendMessages(messages(topic, records)); err != nil {
			return fmt.Errorf("the writer beside the group: %w", err)
		}
		for partition := range t.ends {
			t.ends[partition]++
		}
		select {
		case <-t.halted:
			return nil
		case <-time.After(30 * time.Millisecond):
		}
	}
}

// finish halts the traffic and fails unless the group has read each record once.
func (t *traffic) finish(group *common.Group, topic string) error {
	t.halt()
	err := <-t.done
	if err == nil {
		err = group.WaitUntilRead(topic, t.ends)
	}
	if err != nil {
		return errors.Join(err, group.Wrong())
	}
	return errors.Join(group.ReadOnce(topic, t.ends), group.Wrong())
}

// addresses returns the brokers that the task names.
func (d *driver) addresses() []string {
	return strings.Split(d.task.Bootstrap, ",")
}
