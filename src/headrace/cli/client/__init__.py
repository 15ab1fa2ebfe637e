"""The Kafka client behind the commands: the one home of `confluent_kafka`.

Its handles become four small things: `TopicAdmin` changes topics, `GroupAdmin` looks after groups, `RecordSender`
produces, `RecordReader` consumes without a group. Its errors become ours, and say what to do next.

Importing one of these modules loads librdkafka, which takes a tenth of a second: commands import them when they run.
"""
