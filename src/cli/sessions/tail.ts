import type { Static } from 'typebox'
import type { SessionsTailConfig } from '../../proxy/config/options/operator.ts'
import { ProxyEvent, SessionList } from '../../proxy/http/trainer/sessions/read-schemas.ts'
import { applyColour } from '../colours.ts'
import { OperatorClient } from '../proxy-client.ts'
import { formatJson, formatNumber, printable } from '../table.ts'
import type { SessionJson } from './api.ts'

type Event = Static<typeof ProxyEvent>

/** Runs `llm-proxy sessions tail`. @returns the exit code */
export async function run({ follow, limit, json, ...address }: SessionsTailConfig): Promise<number> {
  const proxy = new OperatorClient(address)
  if (limit > 0) {
    const { sessions } = await proxy.get(`/sessions?sort=changed&limit=${limit}`, SessionList)
    for (const session of sessions.reverse()) print(json ? formatJson(session) : sessionLine(session))
  }
  if (!follow) return 0
  for await (const event of proxy.lines('/events', ProxyEvent)) {
    if (event.type !== 'ping') print(json ? formatJson(event) : eventLine(event))
  }
  return 0
}

function print(line: string): void {
  process.stdout.write(`${line}\n`)
}

function sessionLine({ session_id, status, num_turns, reward, updated_at }: SessionJson): string {
  const turns = `${num_turns} turn${num_turns === 1 ? '' : 's'}`
  return line(
    updated_at,
    session_id,
    `${applyColour(status)}, ${turns}, reward ${reward === null ? '-' : formatNumber(reward)}`,
  )
}

/** Formats an event: its session comes first, or else its member. */
function eventLine({
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
    ...(finish_reason == null ? [] : [printable(finish_reason)]),
    ...(reward === undefined ? [] : [formatNumber(reward)]),
  ]
  return line(atMs, session_id ?? member ?? '-', what.join(' '))
}

function line(atS: number, who: string, what: string): string {
  return `${new Date(atS * 1_000).toISOString()}  ${printable(who)}  ${what}`
}
