"""Runs S3 and SQS on this machine, with a bucket that notifies a queue. Prints their addresses."""

import json
import os
import signal

import boto3
from moto.server import ThreadedMotoServer

server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
host, port = server.get_host_and_port()
url = f"http://{host}:{port}"
os.environ |= {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}

region = "us-west-2"
s3 = boto3.client("s3", region_name=region)
sqs = boto3.client("sqs", region_name=region)
bucket, notifying = "results", "notifying-results"
for name in (bucket, notifying):
    s3.create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": region})
queue = sqs.create_queue(QueueName="results")["QueueUrl"]
arn = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
events = {"QueueConfigurations": [{"QueueArn": arn, "Events": ["s3:ObjectCreated:*"]}]}
s3.put_bucket_notification_configuration(Bucket=notifying, NotificationConfiguration=events)

print(json.dumps({"url": url, "bucket": bucket, "notifyingBucket": notifying, "queueUrl": queue}), flush=True)
signal.pause()
