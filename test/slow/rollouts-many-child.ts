/**
 * An agent in a separate process that behaves as its task's plan requires for this attempt; it prints the id of each
 * completion that it received.
 */
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Conversation, type PlanTask } from './rollouts-many-conversation.ts'

const { OPENAI_BASE_URL: baseUrl = '', OPENAI_API_KEY: apiKey = '', TASK_FILE: taskFile = '' } = process.env
const task = JSON.parse(readFileSync(taskFile, 'utf8')) as PlanTask
const tryNumber = Number(/~(\d+)\/v1$/.exec(baseUrl)?.[1] ?? 1)
const conversation = new Conversation({ baseUrl, apiKey, sample: task.sample, tryNumber })

if (process.argv[2] === 'outlive') {
  await conversation.sendUntilRejected()
} else {
  const behaviour = task.plan[tryNumber - 1]
  await conversation.sendTurn()
  if (behaviour === 'crash') process.exit(3)
  if (behaviour === 'hang') {
    process.on('SIGTERM', () => {})
    await conversation.sendHangingRequest()
  }
  if (behaviour === 'zombie') {
    // In another process group, as in a container.
    spawn(process.execPath, [fileURLToPath(import.meta.url), 'outlive'], {
      detached: true,
      stdio: 'ignore',
    }).unref()
    process.exit(4)
  }
  await conversation.sendTurn()
  process.stdout.write(`${conversation.completionIds.join(' ')}\n`)
}
