/** What a session is about, and what it came to, in a line each. */
import { getTextsUpTo } from '../../../../protocol/canonical/conversation.ts'
import { getContentText } from '../../../../protocol/transcript/messages.ts'
import { isMainWork } from '../../../session/roles/agent-role.ts'
import { AgentRoleFinder } from '../../../session/roles/agent-role-finder.ts'
import type { SessionRecord, TurnOutline, TurnReader } from '../../../store/port/turn-store.ts'

/** Of a longer session the last answer is not looked for: all turns before it would be read. */
const MAX_TURNS = 256
const MAX_CHARS = 300

const REMINDER = /<system-reminder>[\s\S]*?<\/system-reminder>/g

/** The last user message that the main line begins with, and its last answer that has a text; null: there is none. */
export async function readPreview(
  reader: Pick<TurnReader, 'readOutlines'>,
  { sessionId, turnCount }: SessionRecord,
): Promise<{ task: string | null; answer: string | null }> {
  const lines = new AgentRoleFinder()
  let task: string | null = null
  let answer: string | null = null
  for await (const turn of reader.readOutlines(sessionId)) {
    if (!isMainWork(lines.add(turn).line)) continue
    task ??= getTask(turn)
    if (turnCount > MAX_TURNS) break
    if (turn.status === 'completed') answer = oneLine(turn.completionText ?? '') ?? answer
  }
  return { task, answer }
}

function getTask({ lastMessage, promptPieces }: TurnOutline): string | null {
  const messages = getTextsUpTo(lastMessage).map(
    (text) => JSON.parse(text) as { role?: unknown; content?: unknown },
  )
  const texts = messages.filter(({ role }) => role === 'user').map(({ content }) => getContentText(content))
  if (texts.length === 0) return oneLine(promptPieces.join('').slice(0, MAX_CHARS))
  // Some agents put their own notes beside the task, or after it, as a user's text.
  const tasks = texts.map((text) => oneLine(text.replaceAll(REMINDER, '')))
  return tasks.findLast((task) => task !== null) ?? oneLine(texts.at(-1)!)
}

function oneLine(text: string): string | null {
  const line = text
    .slice(0, 4 * MAX_CHARS)
    .replaceAll(/\s+/g, ' ')
    .trim()
  return line === '' ? null : line.slice(0, MAX_CHARS).toWellFormed()
}
