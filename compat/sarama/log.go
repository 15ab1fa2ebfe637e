package main

import (
	"errors"
	"fmt"

	"github.com/IBM/sarama"

	"headrace/compat/common"
)

func (d *driver) produce(name string, codec sarama.CompressionCodec) error {
	kinds := []bool{false}
	if d.hasHeaders() {
		kinds = append(kinds, true)
	}
	for _, idempotent := range kinds {
		topic := d.task.Topic(fmt.Sprintf("produce-%s-%v", name, idempotent))
		if err := d.create(topic, 3, nil); err != nil {
			return err
		}
		config := d.config()
		config.Producer.Compression = codec
		if idempotent {
			config.Producer.Idempotent = true
			config.Net.MaxOpenRequests = 1
		}
		wanted := d.records(3, 0, common.RecordCount)
		if err := d.send(topic, wanted, config); err != nil {
			return err
		}
		if err := d.compare(topic, 3, wanted, d.config()); err != nil {
			return err
		}
	}
	return nil
}

func (d *driver) acks() error {
	for _, acks := range []sarama.RequiredAcks{sarama.NoResponse, sarama.WaitForLocal, sarama.WaitForAll} {
		topic := d.task.Topic(fmt.Sprintf("acks-%d", acks))
		if err := d.create(topic, 1, nil); err != nil {
			return err
		}
		config := d.config()
		config.Producer.RequiredAcks = acks
		wanted := d.records(1, 0, common.RecordCount)
		if err := d.send(topic, wanted, config); err != nil {
			return err
		}
		if err := d.compare(topic, 1, wanted, d.config()); err != nil {
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
	config := d.config()
	config.Producer.MaxMessageBytes = 1_048_588
	if err := d.send(topic, wanted, config); err != nil {
		return err
	}
	return d.compare(topic, 1, wanted, d.config())
}

func (d *driver) oversizedRecord() error {
	topic := d.task.Topic("oversized")
	if err := d.create(topic, 1, map[string]string{"max.message.bytes": "10000"}); err != nil {
		return err
	}
	large := []common.Record{{Value: common.Noise(1, 20_000), TimestampMs: d.task.EpochMs}}
	var refused sarama.ProducerErrors
	if err := d.send(topic, large, d.config()); !errors.As(err, &refused) ||
		!errors.Is(refused[0].Err, sarama.ErrMessageSizeTooLarge) {
		return fmt.Errorf("an oversized record: got %v, wanted MESSAGE_TOO_LARGE", err)
	}
	small := d.records(1, 4, 5)
	if err := d.send(topic, small, d.config()); err != nil {
		return err
	}
	return d.compare(topic, 1, small, d.config())
}

// readByNew has the newest protocol read what this one wrote.
func (d *driver) readByNew() error {
	newest := &driver{task: d.task, version: sarama.MaxVersion}
	return d.cross("read-by-new", d, newest)
}

// readByOld has this protocol read what the newest wrote: batches are turned into old message sets for it.
func (d *driver) readByOld() error {
	newest := &driver{task: d.task, version: sarama.MaxVersion}
	return d.cross("read-by-old", newest, d)
}

func (d *driver) cross(name string, writer, reader *driver) error {
	for _, codec := range []string{"none", "gzip", "snappy", "lz4"} {
		topic := d.task.Topic(name + "-" + codec)
		if err := d.create(topic, 2, nil); err != nil {
			return err
		}
		config := writer.config()
		config.Producer.Compression = codecs[codec]
		wanted := writer.records(2, 0, common.RecordCount)
		if err := writer.send(topic, wanted, config); err != nil {
			return err
		}
		if !reader.hasHeaders() {
			wanted = withoutHeaders(wanted)
		}
		if err := reader.compare(topic, 2, wanted, reader.config()); err != nil {
			return err
		}
	}
	return nil
}

// insideOfAWrapper reads from each offset of a compressed set: a client gets all of it and drops what lies before.
func (d *driver) insideOfAWrapper() error {
	topic := d.task.Topic("inside")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	config := d.config()
	config.Producer.Compression = sarama.CompressionGZIP
	wanted := d.records(1, 0, 10)
	if err := d.send(topic, wanted, config); err != nil {
		return err
	}
	for start := range wanted {
		got, err := d.read(topic, 0, int64(start), len(wanted)-start, d.config())
		if err == nil {
			err = common.Same(got, wanted[start:])
		}
		if err != nil {
			return fmt.Errorf("from offset %d: %w", start, err)
		}
	}
	return nil
}

func (d *driver) autoCreation() error {
	topic := d.task.Topic("auto")
	wanted := d.records(1, 0, 10)
	if err := d.send(topic, wanted, d.config()); err != nil {
		return err
	}
	return d.compare(topic, 1, wanted, d.config())
}

func (d *driver) transactions() error {
	topic := d.task.Topic("transactions")
	if err := d.create(topic, 1, nil); err != nil {
		return err
	}
	config := d.config()
	config.Producer.Idempotent = true
	config.Producer.Transaction.ID = topic
	config.Net.MaxOpenRequests = 1
	producer, err := sarama.NewSyncProducer([]string{d.task.Bootstrap}, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	records := d.records(1, 0, 6)
	for at, end := range []func() error{producer.AbortTxn, producer.CommitTxn} {
		if err := producer.BeginTxn(); err != nil {
			return err
		}
		if err := producer.SendMessages(messages(topic, records[3*at:3*at+3])); err != nil {
			return err
		}
		if err := end(); err != nil {
			return err
		}
	}
	reading := d.config()
	reading.Consumer.IsolationLevel = sarama.ReadCommitted
	return d.compare(topic, 1, records[3:], reading)
}
