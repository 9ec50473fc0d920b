/**
 * An agent in a separate process that behaves as its task's plan requires for this attempt; it prints the id of each
 * completion that it received.
 */
import { spawn } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import { Talk, type TalkTask } from './rollouts-many-talk.ts'

const { OPENAI_BASE_URL: baseUrl = '', OPENAI_API_KEY: apiKey = '', TASK_FILE: taskFile = '' } = process.env
const task = JSON.parse(readFileSync(taskFile, 'utf8')) as TalkTask
const tryNumber = Number(/~(\d+)\/v1$/.exec(baseUrl)?.[1] ?? 1)
const talk = new Talk({ baseUrl, apiKey, sample: task.sample, tryNumber })

if (process.argv[2] === 'haunt') {
  await talk.haunt()
} else {
  const behaviour = task.plan[tryNumber - 1]
  await talk.say()
  if (behaviour === 'crash') process.exit(3)
  if (behaviour === 'hang') {
    process.on('SIGTERM', () => {})
    await talk.hang()
  }
  if (behaviour === 'zombie') {
    // In another process group, as in a container.
    spawn(process.execPath, [fileURLToPath(import.meta.url), 'haunt'], {
      detached: true,
      stdio: 'ignore',
    }).unref()
    process.exit(4)
  }
  await talk.say()
  process.stdout.write(`${talk.answers.join(' ')}\n`)
}
