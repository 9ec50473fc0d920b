/** Runs AgentCore on this machine: the toolkit's own apps as containers, S3 and SQS, and the service in front. */
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Test } from 'tap'
import { installFromPyPI } from '../../agents/parts/install.ts'
import { type PipedProcess, startChild, waitForExit } from '../../helpers/children.ts'
import {
  type Container,
  type FakeAgentCore,
  type FakeAgentCoreOptions,
  SESSION_HEADER,
  startFakeAgentCore,
} from '../../helpers/fake-agentcore.ts'

export interface Storage {
  url: string
  bucket: string
  /** A bucket that notifies the queue of its objects. */
  notifyingBucket: string
  queueUrl: string
}

/** A program of `container.py`, or the program of the documentation. */
export type ProgramKind = 's3' | 'envelope' | 'documented'

export interface Machine {
  python: string
  storage: Storage
  /** Starts the service in front of a container. */
  startAgentCore(t: Test, kind: ProgramKind, limits?: FakeAgentCoreOptions): Promise<FakeAgentCore>
}

/**
 * Starts AgentCore, which stops with the test. Environment variables point every AWS client of this process to its S3
 * and SQS.
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
  const { folder } = await installFromPyPI('agentcore-rl-toolkit', others)
  const python = join(folder, 'bin/python')
  Object.assign(process.env, {
    AWS_REGION: 'us-west-2',
    AWS_ACCESS_KEY_ID: 'test',
    AWS_SECRET_ACCESS_KEY: 'test',
  })
  const storage = (await startProgram(t, python, ['storage.py'])) as unknown as Storage
  Object.assign(process.env, { AWS_ENDPOINT_URL_S3: storage.url, AWS_ENDPOINT_URL_SQS: storage.url })
  const env = { ...process.env, STATE_DIR: t.testdir({}), AWS_ENDPOINT_URL: storage.url }
  const start = (command: [string, ...string[]]) => startProgram(t, python, command, env)
  // AgentCore has a container per session; here the apps separate sessions by id.
  const [s3, envelope, documented] = await Promise.all([
    start(['container.py', 's3']),
    start(['container.py', 'envelope']),
    start(['documented.py']),
  ])
  const containers: Record<ProgramKind, Container> = {
    s3: createContainer(s3.url!),
    envelope: createContainer(envelope.url!),
    documented: createContainer(documented.url!),
  }
  return {
    python,
    storage,
    startAgentCore: (t, kind, limits) => startFakeAgentCore(t, containers[kind], limits),
  }
}

function createContainer(url: string): Container {
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
async function startProgram(
  t: Test,
  python: string,
  [script, ...args]: [string, ...string[]],
  env: NodeJS.ProcessEnv = process.env,
): Promise<Record<string, string>> {
  const child = startChild(python, [join(import.meta.dirname, script), ...args], { env })
  t.teardown(async () => {
    child.kill('SIGKILL')
    await waitForExit(child)
  })
  return JSON.parse(await readFirstLine(child))
}

async function readFirstLine(child: PipedProcess): Promise<string> {
  let errors = ''
  child.stderr.setEncoding('utf8').on('data', (chunk: string) => {
    errors += chunk
  })
  for await (const line of createInterface(child.stdout)) if (line.startsWith('{')) return line
  throw new Error(`the program ended before it was ready: ${errors}`)
}
