/**
 * opencode. A sub-agent runs in a session of its own, whose parent is in a header. Titles, summaries and compaction
 * have system prompts of their own, in the session of what they are about.
 */
import { subagentLine } from '../line.ts'
import { type CallEvidence, header, isAgent, type LineRule, systemText } from './rule.ts'

const SESSION_IDS = ['x-session-id', 'x-session-affinity', 'x-opencode-session']

const startsWith = (call: CallEvidence, ...beginnings: string[]) =>
  isAgent(call, /^opencode\//) && beginnings.some((beginning) => systemText(call).startsWith(beginning))

const parentSession: LineRule = {
  name: 'opencode_parent_session',
  find(call) {
    if (header(call, 'x-parent-session-id') === undefined) return undefined
    return subagentLine(SESSION_IDS.map((name) => header(call, name)).find((id) => id !== undefined))
  },
}

const title: LineRule = {
  name: 'opencode_title',
  find: (call) =>
    startsWith(call, 'You are a title generator. You output ONLY a thread title.') ? 'side' : undefined,
}

const summary: LineRule = {
  name: 'opencode_summary',
  find: (call) => (startsWith(call, 'Summarize what was done in this conversation.') ? 'side' : undefined),
}

const compaction: LineRule = {
  name: 'opencode_compaction',
  find: (call) =>
    startsWith(
      call,
      'You are an anchored context summarization assistant for coding sessions.',
      'You are a helpful AI assistant tasked with summarizing conversations.',
    )
      ? 'compaction'
      : undefined,
}

/** A title may be asked for in a sub-agent's session, too; its compaction is part of its own work. */
export const OPENCODE_RULES: readonly LineRule[] = [title, summary, parentSession, compaction]
