package main

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"headrace/compat/common"
)

func (d *driver) produce(name string, codec kgo.CompressionCodec) error {
	for _, idempotent := range []bool{false, true} {
		topic := d.task.Topic(fmt.Sprintf("produce-%s-%v", name, idempotent))
		if err := d.create(topic, 3, nil); err != nil {
			return err
		}
		settings := []kgo.Opt{kgo.ProducerBatchCompression(codec)}
		if !idempotent {
			settings = append(settings, kgo.DisableIdempotentWrite())
		}
		wanted := common.Range(3, 0, common.RecordCount, d.task.EpochMs)
		if err := d.send(topic, wanted, settings...); err != nil {
			return err
		}
		if err := d.compare(topic, 3, wanted); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) acks() error {
	levels := map[string]kgo.Acks{"none": kgo.NoAck(), "leader": kgo.LeaderAck(), "all": kgo.AllISRAcks()}
	for name, acks := range levels {
		topic := d.task.Topic("acks-" + name)
		if err := d.create(topic, 1, nil); err != nil {
			return err
		}
		wanted := common.Range(1, 0, common.RecordCount, d.task.EpochMs)
		if err := d.send(topic, wanted, kgo.RequiredAcks(acks), kgo.DisableIdempotentWrite()); err != nil {
			return err
		}
		if err := d.compare(topic, 1, wanted); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) largeRecords() error {
	topic := d.task.Topic("large")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	wanted := common.Large(d.task.EpochMs)
	// franz-go's own limit is 1,000,012 bytes, less than what a broker takes by default.
	settings := []kgo.Opt{kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerBatchMaxBytes(1_048_588)}
	if err := d.send(topic, wanted, settings...); err != nil {
		return err
	}
	// The first batch must come whole although it is larger than what the client asks for.
	return d.compare(topic, 1, wanted, kgo.FetchMaxPartitionBytes(1000))
}

func (d *driver) oversizedRecord() error {
	topic := d.task.Topic("oversized")
	if err := d.create(topic, 1, map[string]string{"max.message.bytes": "10000"}); err != nil {
		return err
	}
	large := []common.Record{{Value: common.Noise(1, 20_000), TimestampMs: d.task.EpochMs}}
	if err := d.send(topic, large); !errors.Is(err, kerr.MessageTooLarge) {
		return fmt.Errorf("an oversized record: got %v, wanted MESSAGE_TOO_LARGE", err)
	}
	small := common.Range(1, 4, 5, d.task.EpochMs)
	if err := d.send(topic, small); err != nil {
		return err
	}
	return d.compare(topic, 1, small)
}

func (d *driver) autoCreation() error {
	topic := d.task.Topic("auto")
	wanted := common.Range(1, 0, 10, d.task.EpochMs)
	if err := d.send(topic, wanted, kgo.AllowAutoTopicCreation()); err != nil {
		return err
	}
	return d.compare(topic, 1, wanted)
}

// longPoll has a consumer wait at the end of an empty partition before anything is written.
func (d *driver) longPoll() error {
	topic := d.task.Topic("long-poll")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	client, err := d.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(0)}}))
	if err != nil {
		return err
	}
	defer client.Close()
	type outcome struct {
		got map[int32][]common.Record
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		got, err := readWith(client, 3)
		done <- outcome{got, err}
	}()
	wanted := common.Range(1, 10, 13, d.task.EpochMs)
	for at := range wanted {
		if err := d.send(topic, wanted[at:at+1]); err != nil {
			return err
		}
	}
	result := <-done
	if result.err != nil {
		return result.err
	}
	return common.Same(result.got[0], wanted)
}

func (d *driver) transactions() error {
	topic := d.task.Topic("transactions")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	client, err := d.client(kgo.TransactionalID(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	records := common.Range(1, 0, 6, d.task.EpochMs)
	ctx, cancel := limited()
	defer cancel()
	for at, end := range []kgo.TransactionEndTry{kgo.TryAbort, kgo.TryCommit} {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		if err := sendWith(client, topic, records[3*at:3*at+3]); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, end); err != nil {
			return err
		}
	}
	return d.compare(topic, 1, records[3:], kgo.FetchIsolationLevel(kgo.ReadCommitted()))
}
