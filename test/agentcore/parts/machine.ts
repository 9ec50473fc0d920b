/** AgentCore on this machine: the toolkit's own apps in a container, S3 and SQS, and the service in front. */
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Test } from 'tap'
import { type Installed, installFromPyPI } from '../../agents/parts/install.ts'
import {
  type Container,
  type Front,
  type FrontLimits,
  SESSION_HEADER,
  startFront,
} from '../../helpers/agentcore-front.ts'
import { ended, type PipedProcess, startChild } from '../../helpers/children.ts'

export interface Storage {
  url: string
  bucket: string
  /** A bucket that reports its results to the queue. */
  notifyingBucket: string
  queueUrl: string
}

/** A program of `container.py`, or the program of the documentation. */
export type Kind = 's3' | 'envelope' | 'documented'

export interface Machine {
  python: string
  storage: Storage
  /** Starts the service in front of a container. */
  front(t: Test, kind: Kind, limits?: FrontLimits): Promise<Front>
}

/**
 * Starts AgentCore; it ends with the test. The environment sets its S3 and SQS for every AWS client of this process.
 */
export async function startMachine(t: Test): Promise<Machine> {
  // The toolkit does not install the dependencies of its server side, nor those of trainers.
  const others = [
    'bedrock-agentcore',
    'moto[server]',
    'openai',
    'strands-agents[openai]',
    'aiobotocore',
    'backoff',
  ]
  const installed: Installed = await installFromPyPI('agentcore-rl-toolkit', others)
  const python = join(installed.folder, 'bin/python')
  Object.assign(process.env, {
    AWS_REGION: 'us-west-2',
    AWS_ACCESS_KEY_ID: 'test',
    AWS_SECRET_ACCESS_KEY: 'test',
  })
  const storage = (await startPart(t, python, ['storage.py'])) as unknown as Storage
  Object.assign(process.env, { AWS_ENDPOINT_URL_S3: storage.url, AWS_ENDPOINT_URL_SQS: storage.url })
  const env = { ...process.env, STATE_DIR: t.testdir({}), AWS_ENDPOINT_URL: storage.url }
  const start = (command: [string, ...string[]]) => startPart(t, python, command, env)
  // AgentCore has a container per session; here the apps keep sessions apart by their ids.
  const [s3, envelope, documented] = await Promise.all([
    start(['container.py', 's3']),
    start(['container.py', 'envelope']),
    start(['documented.py']),
  ])
  const containers: Record<Kind, Container> = {
    s3: containerAt(s3.url!),
    envelope: containerAt(envelope.url!),
    documented: containerAt(documented.url!),
  }
  return { python, storage, front: (t, kind, limits) => startFront(t, containers[kind], limits) }
}

function containerAt(url: string): Container {
  return async (sessionId, payload) => {
    const headers = { 'content-type': 'application/json', [SESSION_HEADER]: sessionId }
    const response = await fetch(`${url}/invocations`, {
      method: 'POST',
      headers,
      body: JSON.stringify(payload),
    })
    return { status: response.status, body: await response.text() }
  }
}

/** @returns the line of JSON that the program prints when it is ready */
async function startPart(
  t: Test,
  python: string,
  [script, ...args]: [string, ...string[]],
  env: NodeJS.ProcessEnv = process.env,
): Promise<Record<string, string>> {
  const child = startChild(python, [join(import.meta.dirname, script), ...args], { env })
  t.teardown(async () => {
    child.kill('SIGKILL')
    await ended(child)
  })
  return JSON.parse(await firstLine(child))
}

async function firstLine(child: PipedProcess): Promise<string> {
  let errors = ''
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    errors += chunk
  })
  for await (const line of createInterface(child.stdout)) if (line.startsWith('{')) return line
  throw new Error(`the program ended before it was ready: ${errors}`)
}
