package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"headrace/compat/common"
)

// groupAdmin does to a group what operators do: first while it has a member, then when it is empty, then away with it.
func (d *driver) groupAdmin(protocol string) error {
	topic := d.task.Topic("admin-" + protocol)
	if err := d.create(topic, 2, nil); err != nil {
		return err
	}
	if err := d.send(topic, common.Range(2, 0, 20, d.task.EpochMs)); err != nil {
		return err
	}
	group := common.NewGroup()
	settings := append(slices.Clone(protocols[protocol]), kgo.ConsumeTopics(topic))
	one, err := d.join(group, topic, "one", settings...)
	if err != nil {
		return err
	}
	err = errors.Join(
		group.WaitUntilRead(topic, []int64{10, 10}), d.listed(topic, protocol, "Stable"), d.described(topic, protocol),
		d.refusedWhileAlive(topic),
	)
	one.stop()
	if err = errors.Join(err, group.Wrong()); err != nil {
		return err
	}
	return errors.Join(d.listed(topic, protocol, "Empty"), d.offsetsOfEmpty(topic), d.deleteGroups(topic))
}

// listed finds the group by its state and by its type, and not by others.
func (d *driver) listed(groupID, protocol, state string) error {
	ctx, cancel := limited()
	defer cancel()
	err := common.WaitUntil("the group is "+state, func() (bool, error) {
		found, err := d.admin.ListGroups(ctx)
		if err != nil {
			return false, err
		}
		one, ok := found[groupID]
		return ok && one.State == state && one.ProtocolType == "consumer", nil
	})
	if err != nil {
		return err
	}
	other := map[string]string{"Stable": "Empty", "Empty": "Stable"}[state]
	otherType := map[string]string{"classic": "consumer", "consumer": "classic"}[protocol]
	for at, filter := range []struct {
		types  []string
		states []string
		wanted bool
	}{
		{nil, []string{state}, true}, {nil, []string{other}, false}, {[]string{protocol}, nil, true},
		{[]string{otherType}, nil, false}, {[]string{protocol}, []string{state}, true},
		{[]string{protocol}, []string{other}, false},
	} {
		found, err := d.admin.ListGroupsByType(ctx, filter.types, filter.states...)
		if err != nil {
			return err
		}
		if _, ok := found[groupID]; ok != filter.wanted {
			return fmt.Errorf("filter %d (%v, %v): found is %v", at, filter.types, filter.states, ok)
		}
	}
	return nil
}

// described looks at the only member. Each type of group has its own call, which does not find groups of the other.
func (d *driver) described(groupID, protocol string) error {
	ctx, cancel := limited()
	defer cancel()
	classic, err := d.admin.DescribeGroups(ctx, groupID)
	if err != nil {
		return err
	}
	consumer, err := d.admin.DescribeConsumerGroups(ctx, groupID)
	if err != nil {
		return err
	}
	if protocol == "classic" {
		return errors.Join(
			refused(consumer[groupID].Err, kerr.GroupIDNotFound), describedClassic(classic[groupID], groupID),
		)
	}
	return errors.Join(
		refused(classic[groupID].Err, kerr.GroupIDNotFound), describedConsumer(consumer[groupID], groupID),
	)
}

func describedClassic(found kadm.DescribedGroup, topic string) error {
	if found.Err != nil || len(found.Members) != 1 {
		return fmt.Errorf("described are %d members (%v)", len(found.Members), found.Err)
	}
	member := found.Members[0]
	if assigned, ok := member.Assigned.AsConsumer(); !ok || len(assigned.Topics) != 1 ||
		assigned.Topics[0].Topic != topic || len(assigned.Topics[0].Partitions) != 2 {
		return fmt.Errorf("assigned is %v", assigned)
	}
	return errors.Join(
		common.Equal(found.State, "Stable", "state"),
		common.Equal(found.ProtocolType, "consumer", "protocol type"),
		common.Equal(found.Protocol, "cooperative-sticky", "protocol"),
		common.Equal(member.ClientID, "compat-franz-go", "client id"),
		common.Equal(strings.TrimPrefix(member.ClientHost, "/"), "127.0.0.1", "client host"),
		common.Equal(strings.Join(found.JoinTopics(), ","), topic, "subscribed topics"),
	)
}

func describedConsumer(found kadm.DescribedConsumerGroup, topic string) error {
	if found.Err != nil || len(found.Members) != 1 {
		return fmt.Errorf("described are %d members (%v)", len(found.Members), found.Err)
	}
	member := found.Members[0]
	if !member.Assignment.Lookup(topic, 0) || !member.Assignment.Lookup(topic, 1) {
		return fmt.Errorf("assigned is %v", member.Assignment)
	}
	if found.Epoch < 1 || found.AssignmentEpoch != found.Epoch || member.MemberEpoch != found.Epoch {
		return fmt.Errorf("epochs %d, %d, %d", found.Epoch, found.AssignmentEpoch, member.MemberEpoch)
	}
	return errors.Join(
		common.Equal(found.State, "Stable", "state"),
		common.Equal(found.AssignorName, "uniform", "assignor"),
		common.Equal(member.ClientID, "compat-franz-go", "client id"),
		common.Equal(strings.TrimPrefix(member.ClientHost, "/"), "127.0.0.1", "client host"),
		common.Equal(strings.Join(member.SubscribedTopics, ","), topic, "subscribed topics"),
		common.Equal(len(member.TargetAssignment[topic]), 2, "partitions of the target"),
	)
}

// refusedWhileAlive tries what must not be done to a group that has members.
func (d *driver) refusedWhileAlive(groupID string) error {
	ctx, cancel := limited()
	defer cancel()
	_, deleting := d.admin.DeleteGroup(ctx, groupID)
	deleted, err := d.admin.DeleteOffsets(ctx, groupID, kadm.TopicsSet{groupID: {0: {}}})
	if err != nil {
		return err
	}
	unsubscribed, _ := deleted.Lookup(groupID, 0)
	return errors.Join(
		refused(deleting, kerr.NonEmptyGroup),
		refused(unsubscribed, kerr.GroupSubscribedToTopic),
		refused(d.commitAs(ctx, groupID, groupID, 1, ""), kerr.UnknownMemberID),
	)
}

// commitAs commits an offset of partition 0 without being a member.
func (d *driver) commitAs(ctx context.Context, groupID, topic string, at int64, metadata string) error {
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: topic, Partition: 0, At: at, LeaderEpoch: -1, Metadata: metadata})
	return d.admin.CommitAllOffsets(ctx, groupID, offsets)
}

// offsetsOfEmpty moves, reads and deletes offsets of a group without members, and of one that never had any.
func (d *driver) offsetsOfEmpty(groupID string) error {
	ctx, cancel := limited()
	defer cancel()
	simple, unknown := groupID+"-simple", groupID+"-unknown"
	err := errors.Join(
		d.commitAs(ctx, groupID, groupID, 4, "back to four"), d.commitAs(ctx, simple, groupID, 7, ""),
		refused(d.commitAs(ctx, simple, groupID, 8, strings.Repeat("m", 4097)), kerr.OffsetMetadataTooLarge),
	)
	if err != nil {
		return err
	}
	many := d.admin.FetchManyOffsets(ctx, groupID, simple, unknown)
	if err := many.Error(); err != nil {
		return err
	}
	moved, _ := many[groupID].Fetched.Lookup(groupID, 0)
	kept, _ := many[groupID].Fetched.Lookup(groupID, 1)
	alone, _ := many[simple].Fetched.Lookup(groupID, 0)
	missing, err := d.admin.FetchOffsetsForTopics(ctx, unknown, groupID)
	if err != nil {
		return err
	}
	none, _ := missing.Lookup(groupID, 0)
	err = errors.Join(
		common.Equal(moved.At, 4, "moved offset"), common.Equal(moved.Metadata, "back to four", "its metadata"),
		common.Equal(kept.At, 10, "offset beside it"), common.Equal(alone.At, 7, "offset without members"),
		common.Equal(len(many[unknown].Fetched), 0, "topics of a group that nobody knows"),
		common.Equal(none.At, -1, "an offset of it"), none.Err,
	)
	if err != nil {
		return err
	}
	deleted, err := d.admin.DeleteOffsets(ctx, groupID, kadm.TopicsSet{groupID: {1: {}}})
	if err = errors.Join(err, deleted.Error()); err != nil {
		return err
	}
	left, err := d.admin.FetchOffsets(ctx, groupID)
	if err != nil {
		return err
	}
	if _, exists := left.Lookup(groupID, 1); exists {
		return errors.New("a deleted offset is still there")
	}
	return d.lag(ctx, simple, groupID, map[int32]int64{0: 3})
}

func (d *driver) lag(ctx context.Context, groupID, topic string, wanted map[int32]int64) error {
	lags, err := d.admin.Lag(ctx, groupID)
	if err = errors.Join(err, lags.Error()); err != nil {
		return err
	}
	for partition, lag := range wanted {
		found, _ := lags[groupID].Lag.Lookup(topic, partition)
		if err := errors.Join(found.Err, common.Equal(found.Lag, lag, "lag")); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) deleteGroups(groupID string) error {
	ctx, cancel := limited()
	defer cancel()
	simple, unknown := groupID+"-simple", groupID+"-unknown"
	deleted, err := d.admin.DeleteGroups(ctx, groupID, simple, unknown)
	if err != nil {
		return err
	}
	listed, err := d.admin.ListGroups(ctx)
	if err != nil {
		return err
	}
	offsets, err := d.admin.FetchOffsets(ctx, groupID)
	_, exists := listed[groupID]
	return errors.Join(
		err, deleted[groupID].Err, deleted[simple].Err, refused(deleted[unknown].Err, kerr.GroupIDNotFound),
		common.Equal(exists, false, "the deleted group is listed"),
		common.Equal(len(offsets), 0, "topics with offsets of a deleted group"),
	)
}
