package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"headrace/compat/common"
)

const groupPartitions = 6

// group has one member join, read, commit and leave. The next one goes on from what was committed.
func (d *driver) group(protocol string) error {
	topic := d.task.Topic("group-" + protocol)
	if err := d.create(topic, 3, nil); err != nil {
		return err
	}
	wanted := common.Range(3, 0, common.RecordCount, d.task.EpochMs)
	first, second := wanted[:common.RecordCount/2], wanted[common.RecordCount/2:]
	for at, records := range [][]common.Record{first, second} {
		if err := d.send(topic, records); err != nil {
			return err
		}
		if err := d.readInGroup(topic, protocol, records); err != nil {
			return fmt.Errorf("member %d: %w", at, err)
		}
		for partition := range int32(3) {
			read := len(common.Part(wanted[:(at+1)*common.RecordCount/2], partition))
			if err := d.committed(topic, topic, partition, int64(read)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *driver) readInGroup(topic, protocol string, wanted []common.Record) error {
	group := common.NewGroup()
	settings := append(groupSettings(topic), append(watched(group, "member"), kgo.ConsumeTopics(topic))...)
	client, err := d.client(append(settings, protocols[protocol]...)...)
	if err != nil {
		return err
	}
	defer client.CloseAllowingRebalance()
	got, err := readWith(client, len(wanted))
	if err != nil {
		return err
	}
	for partition := range int32(3) {
		if err := common.Same(got[partition], common.Part(wanted, partition)); err != nil {
			return err
		}
	}
	if assigned := group.Owned("member", topic); !slices.Equal(assigned, []int32{0, 1, 2}) {
		return fmt.Errorf("assigned were %v", assigned)
	}
	if memberID, generation := client.GroupMetadata(); memberID == "" || generation < 1 {
		return fmt.Errorf("member %q of generation %d", memberID, generation)
	}
	ctx, cancel := limited()
	defer cancel()
	return client.CommitUncommittedOffsets(ctx)
}

func (d *driver) committed(groupID, topic string, partition int32, wanted int64) error {
	ctx, cancel := limited()
	defer cancel()
	offsets, err := d.admin.FetchOffsets(ctx, groupID)
	if err != nil {
		return err
	}
	found, ok := offsets.Lookup(topic, partition)
	if !ok || found.Err != nil {
		return fmt.Errorf("no committed offset of %s-%d: %v", topic, partition, found.Err)
	}
	return common.Equal(found.At, wanted, fmt.Sprintf("committed offset of %s-%d", topic, partition))
}

// rebalance has members come and go.
func (d *driver) rebalance(protocol string) (string, error) {
	note, taken, err := d.handOver("rebalance-"+protocol, protocol, protocol)
	// An eager protocol takes everything from everybody; the others take only what the second member is to have.
	given := 3
	if slices.Contains([]string{"range", "round_robin", "sticky"}, protocol) {
		given = groupPartitions
	}
	if err == nil {
		err = common.Equal(taken, given, "partitions that the first member had to let go")
	}
	return note, err
}

// migrate has a member of another protocol join: when the first one leaves, the group is of the second one's type.
func (d *driver) migrate(name, from, to string) (string, error) {
	note, _, err := d.handOver(name, from, to)
	if err != nil {
		return "", err
	}
	ctx, cancel := limited()
	defer cancel()
	found, err := d.admin.ListGroupsByType(ctx, []string{to})
	_, exists := found[d.task.Topic(name)]
	return note, errors.Join(err, common.Equal(exists, true, "a group of type "+to))
}

// handOver has a second member join a group and the first one leave it while records are written. It also tells how
// many partitions the first member had to let go for the second.
func (d *driver) handOver(name, from, to string) (note string, taken int, err error) {
	topic := d.task.Topic(name)
	if err := d.create(topic, groupPartitions, nil); err != nil {
		return "", 0, err
	}
	group := common.NewGroup()
	start := func(who, protocol string) (*member, error) {
		return d.join(group, topic, who, append(slices.Clone(protocols[protocol]), kgo.ConsumeTopics(topic))...)
	}
	writer, err := d.startTraffic(topic, groupPartitions)
	if err != nil {
		return "", 0, err
	}
	defer writer.halt()
	first, err := start("first", from)
	if err != nil {
		return "", 0, err
	}
	var second *member
	defer func() { stopAll(first, second) }()
	if err := group.WaitForShares(topic, map[string]int{"first": groupPartitions}); err != nil {
		return "", 0, err
	}
	began := time.Now()
	if second, err = start("second", to); err != nil {
		return "", 0, err
	}
	if err := group.WaitForShares(topic, map[string]int{"first": 3, "second": 3}); err != nil {
		return "", 0, err
	}
	joined := time.Since(began)
	taken = group.Given("first")
	began = time.Now()
	first.stop()
	first = nil
	if err := group.WaitForShares(topic, map[string]int{"second": groupPartitions}); err != nil {
		return "", 0, err
	}
	note = fmt.Sprintf("second member's share after %.1f s, all of it after the first one's leave %.1f s",
		joined.Seconds(), time.Since(began).Seconds())
	return note, taken, writer.finish(group, topic)
}

// static restarts a member that has an instance id: it has its partitions back, and nobody else notices.
func (d *driver) static(protocol string) error {
	topic := d.task.Topic("static-" + protocol)
	if err := d.create(topic, groupPartitions, nil); err != nil {
		return err
	}
	group := common.NewGroup()
	start := func(name string) (*member, error) {
		settings := append(slices.Clone(protocols[protocol]), kgo.ConsumeTopics(topic), kgo.InstanceID(name))
		return d.join(group, topic, name, settings...)
	}
	first, err := start("first")
	if err != nil {
		return err
	}
	second, err := start("second")
	if err != nil {
		return err
	}
	defer func() { stopAll(first, second) }()
	halves := map[string]int{"first": 3, "second": 3}
	if err := group.WaitForShares(topic, halves); err != nil {
		return err
	}
	before, given := group.Owned("second", topic), group.Given("first")
	_, generation := first.client.GroupMetadata()
	memberID, _ := second.client.GroupMetadata()
	second.stop()
	if err := d.leaveForNow(protocol, topic, "second", memberID); err != nil {
		return err
	}
	if second, err = start("second"); err != nil {
		return err
	}
	if err := group.WaitForShares(topic, halves); err != nil {
		return err
	}
	_, later := first.client.GroupMetadata()
	if after := group.Owned("second", topic); !slices.Equal(before, after) {
		return fmt.Errorf("%v before the restart, %v after it", before, after)
	}
	err = errors.Join(
		common.Equal(group.Given("first"), given, "partitions that the other member let go"),
		common.Equal(later, generation, "generation"),
	)
	if err != nil {
		return err
	}
	second.stop()
	second = nil
	if err := d.removeInstance(topic, "second"); err != nil {
		return err
	}
	return errors.Join(group.WaitForShares(topic, map[string]int{"first": groupPartitions}), group.Wrong())
}

// leaveForNow says for a static member of the consumer protocol that it will be back, which frees its instance id at once.
// franz-go 1.22.2 says so too when it is closed, but without the instance id, and is refused.
func (d *driver) leaveForNow(protocol, groupID, instanceID, memberID string) error {
	if protocol != "consumer" {
		return nil
	}
	request := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	request.Group, request.MemberID, request.InstanceID, request.MemberEpoch = groupID, memberID, &instanceID, -2
	ctx, cancel := limited()
	defer cancel()
	answer, err := request.RequestWith(ctx, d.plain)
	if err != nil {
		return err
	}
	return errors.Join(
		kerr.ErrorForCode(answer.ErrorCode), common.Equal(answer.MemberEpoch, -2, "epoch of a member that will be back"),
	)
}

// removeInstance takes a static member out of its group, as an operator does whose process will not come back.
func (d *driver) removeInstance(groupID, instanceID string) error {
	ctx, cancel := limited()
	defer cancel()
	left, err := d.admin.LeaveGroup(ctx, kadm.LeaveGroup(groupID).InstanceIDs(instanceID))
	return errors.Join(err, left.Error())
}

// regex subscribes to a pattern. A topic that is created later belongs to it too.
func (d *driver) regex(protocol string) error {
	names := []string{"regex-" + protocol + "-a", "regex-" + protocol + "-b", "regex-" + protocol + "-later"}
	var topics []string
	for _, name := range names {
		topics = append(topics, d.task.Topic(name))
	}
	other := d.task.Topic("no-regex-" + protocol)
	for _, topic := range append(topics[:2:2], other) {
		if err := d.makeAndFill(topic); err != nil {
			return err
		}
	}
	group := common.NewGroup()
	settings := append(
		slices.Clone(protocols[protocol]), kgo.ConsumeRegex(),
		kgo.ConsumeTopics("^"+d.task.Topic("regex-"+protocol)+"-[a-z]+$"), kgo.MetadataMaxAge(time.Second),
	)
	one, err := d.join(group, other, "one", settings...)
	if err != nil {
		return err
	}
	defer one.stop()
	for at, topic := range topics {
		if at == 2 {
			if err := d.makeAndFill(topic); err != nil {
				return err
			}
		}
		ends := []int64{5, 5}
		if err := errors.Join(group.WaitUntilRead(topic, ends), group.ReadOnce(topic, ends)); err != nil {
			return err
		}
	}
	return errors.Join(group.Wrong(), common.Equal(len(group.Owned("one", other)), 0, "partitions of another topic"))
}

func (d *driver) makeAndFill(topic string) error {
	if err := d.create(topic, 2, nil); err != nil {
		return err
	}
	return d.send(topic, common.Range(2, 0, 10, d.task.EpochMs))
}
