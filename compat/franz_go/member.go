package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"headrace/compat/common"
)

// protocols are the ways to take part in a group. The classic one is cooperative unless told otherwise. The consumer
// protocol (KIP-848) has to be asked for, and the balancer then only names the broker's assignor.
var protocols = map[string][]kgo.Opt{
	"classic":        nil,
	"range":          {kgo.Balancers(kgo.RangeBalancer())},
	"round_robin":    {kgo.Balancers(kgo.RoundRobinBalancer())},
	"sticky":         {kgo.Balancers(kgo.StickyBalancer())},
	"cooperative":    {kgo.Balancers(kgo.CooperativeStickyBalancer())},
	"consumer":       {kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer())},
	"consumer_range": {kgo.ServerSideBalancer(), kgo.Balancers(kgo.RangeBalancer())},
}

// member is a consumer in a group that commits all that it reads before it lets anything go.
type member struct {
	name   string
	group  *common.Group
	client *kgo.Client
	cancel context.CancelFunc
	ended  chan struct{}
}

// join starts a member. Everything of one group has to be in the same common.Group.
func (d *driver) join(group *common.Group, groupID, name string, more ...kgo.Opt) (*member, error) {
	client, err := d.client(append(groupSettings(groupID), append(watched(group, name), more...)...)...)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	one := &member{name: name, group: group, client: client, cancel: cancel, ended: make(chan struct{})}
	go one.run(ctx)
	return one, nil
}

func groupSettings(groupID string) []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumerGroup(groupID), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		// Classic members hear of a rebalance with their next heartbeat; KIP-848 has the broker say how often.
		kgo.HeartbeatInterval(300 * time.Millisecond),
		// It has one fetch under way per broker: a partition that comes in later waits for that one's end, 5 s by default.
		kgo.FetchMaxWait(300 * time.Millisecond),
		// Left alone it waits up to 5 s between attempts when a broker is gone.
		kgo.RetryBackoffFn(func(int) time.Duration { return 250 * time.Millisecond }),
	}
}

func watched(group *common.Group, name string) []kgo.Opt {
	gone := func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
		for topic, numbers := range partitions {
			group.Give(name, topic, numbers...)
		}
	}
	return []kgo.Opt{
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			for topic, numbers := range partitions {
				group.Take(name, topic, numbers...)
			}
		}),
		kgo.OnPartitionsRevoked(gone), kgo.OnPartitionsLost(gone),
	}
}

func (m *member) run(ctx context.Context) {
	defer close(m.ended)
	for ctx.Err() == nil {
		fetches := m.client.PollRecords(ctx, 100)
		fetches.EachError(func(topic string, partition int32, err error) {
			if ctx.Err() == nil {
				// franz-go tells of what it then tries again by itself. What it gives up is seen by what is missing.
				fmt.Fprintf(os.Stderr, "%s: %s-%d: %v\n", m.name, topic, partition, err)
			}
		})
		fetches.EachRecord(func(got *kgo.Record) {
			m.group.Read(m.name, common.GroupRecord{Topic: got.Topic, Partition: got.Partition, Offset: got.Offset})
		})
		if err := m.commit(fetches.Records()); err != nil {
			m.group.Fail(fmt.Errorf("%s cannot commit: %w", m.name, err))
		}
		m.client.AllowRebalance()
	}
}

// commit tries again while a rebalance is under way: a cooperative member reads on during that time.
func (m *member) commit(records []*kgo.Record) error {
	if len(records) == 0 {
		return nil
	}
	ctx, cancel := limited()
	defer cancel()
	for {
		err := m.client.CommitRecords(ctx, records...)
		if err == nil || ctx.Err() != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%s commits again: %v\n", m.name, err)
		time.Sleep(50 * time.Millisecond)
	}
}

// stop ends the member. It leaves the group, unless it has an instance id.
func (m *member) stop() {
	m.cancel()
	<-m.ended
	m.client.CloseAllowingRebalance()
	m.group.GiveAll(m.name)
}

func stopAll(members ...*member) {
	for _, one := range members {
		if one != nil {
			one.stop()
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
	client, err := d.client()
	if err != nil {
		return nil, err
	}
	one := &traffic{ends: make([]int64, partitions), halted: make(chan struct{}), done: make(chan error, 1)}
	one.halt = sync.OnceFunc(func() { close(one.halted) })
	go func() {
		defer client.Close()
		one.done <- one.run(client, topic, d.task.EpochMs)
	}()
	return one, nil
}

func (t *traffic) run(client *kgo.Client, topic string, epochMs int64) error {
	for {
		var records []common.Record
		for partition := range t.ends {
			records = append(records, common.Record{Partition: int32(partition), TimestampMs: epochMs})
		}
		if err := sendWith(client, topic, records); err != nil {
			return fmt.Errorf("the writer beside the group: %w", err)
		}
		for partition := range t.ends {
			t.ends[partition]++
		}
		select {
		case <-t.halted:
			return nil
		case <-time.After(10 * time.Millisecond):
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
