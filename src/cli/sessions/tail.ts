import type { Static } from 'typebox'
import type { SessionsTailConfig } from '../../proxy/config/options/operator.ts'
import { ProxyEvent, SessionList } from '../../proxy/http/trainer/sessions/read-schemas.ts'
import { applyColour } from '../colours.ts'
import { printLine } from '../print-line.ts'
import { OperatorClient } from '../proxy-client.ts'
import { formatJson, formatNumber, toPrintable } from '../table.ts'
import type { SessionJson } from './api.ts'

type Event = Static<typeof ProxyEvent>

/** Runs `llm-proxy sessions tail`. @returns the exit code */
export async function run({ follow, limit, json, ...address }: SessionsTailConfig): Promise<number> {
  const proxy = new OperatorClient(address)
  if (limit > 0) {
    const { sessions } = await proxy.get(`/sessions?sort=changed&limit=${limit}`, SessionList)
    for (const session of sessions.reverse())
      printLine(json ? formatJson(session) : formatSessionLine(session))
  }
  if (!follow) return 0
  for await (const event of proxy.streamLines('/events', ProxyEvent)) {
    if (event.type !== 'ping') printLine(json ? formatJson(event) : formatEventLine(event))
  }
  return 0
}

function formatSessionLine({ session_id, status, num_turns, reward, updated_at }: SessionJson): string {
  const turns = `${num_turns} turn${num_turns === 1 ? '' : 's'}`
  return formatLine(
    updated_at,
    session_id,
    `${applyColour(status)}, ${turns}, reward ${reward === null ? '-' : formatNumber(reward)}`,
  )
}

/** Formats an event, after the session or else the engine or worker that it concerns. */
function formatEventLine({
  at: atMs,
  type,
  session_id,
  member,
  index,
  status,
  finish_reason,
  reward,
}: Event): string {
  const what = [
    type.replaceAll('_', ' '),
    ...(index === undefined ? [] : [String(index)]),
    ...(status === undefined ? [] : [applyColour(status)]),
    ...(finish_reason == null ? [] : [toPrintable(finish_reason)]),
    ...(reward === undefined ? [] : [formatNumber(reward)]),
  ]
  return formatLine(atMs, session_id ?? member ?? '-', what.join(' '))
}

function formatLine(atS: number, subject: string, what: string): string {
  return `${new Date(atS * 1_000).toISOString()}  ${toPrintable(subject)}  ${what}`
}
