/**
 * A trainer's process: it fetches sessions, trains on them and acknowledges them until none is left. It prints each
 * session when it trains on it and when the acknowledgement succeeds, and kills itself at a given step.
 * | node consuming-trainer.ts URL [STEP]
 */
import { writeSync } from 'node:fs'

const [url, dieAt] = process.argv.slice(2)

/** The steps in the order in which they occur. */
export const STEPS = [
  'before the fetch',
  'fetch sent',
  'response started',
  'response half read',
  'fetched',
  'trained',
  'ack sent',
  'acked',
] as const

function pass(step: (typeof STEPS)[number]): void {
  if (step === dieAt) process.kill(process.pid, 'SIGKILL')
}

/** Written synchronously, so that output is not lost when the process dies. */
const print = (line: string) => writeSync(1, `${line}\n`)

const sendRequest = (route: string, body: object) =>
  fetch(`${url}/consumers/trainer/${route}`, { method: 'POST', body: JSON.stringify(body) })

/** Dies after the request is sent and before a response is read. */
async function afterSending(step: (typeof STEPS)[number]): Promise<void> {
  if (step !== dieAt) return
  await new Promise((resolve) => setTimeout(resolve, 20))
  pass(step)
}

async function fetchSessions(): Promise<{ lease_id: string; sessions: { session_id: string }[] }> {
  pass('before the fetch')
  const fetched = sendRequest('fetch', { limit: 3 })
  await afterSending('fetch sent')
  const response = await fetched
  pass('response started')
  let text = ''
  for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
    text += chunk
    pass('response half read')
  }
  pass('fetched')
  return JSON.parse(text)
}

async function train(): Promise<void> {
  while (true) {
    const { lease_id, sessions } = await fetchSessions()
    const session_ids = sessions.map(({ session_id: id }) => id)
    if (session_ids.length === 0) return
    for (const id of session_ids) print(`trained ${id}`)
    pass('trained')
    const acknowledgement = sendRequest('ack', { lease_id, session_ids })
    await afterSending('ack sent')
    const { acknowledged } = (await (await acknowledgement).json()) as { acknowledged: string[] }
    for (const id of acknowledged) print(`acked ${id}`)
    pass('acked')
  }
}

if (url !== undefined) await train()
