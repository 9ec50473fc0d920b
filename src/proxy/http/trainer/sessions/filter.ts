/** Converts session filters from the wire format; totals, groups and search hits to it. */
import type { Static } from 'typebox'
import { getRunIdPrefix } from '../../../session/state/session-id.ts'
import type {
  SearchPage,
  SessionFilter,
  SessionGroup,
  SessionTotals,
} from '../../../store/port/turn-store.ts'
import { type Caller, getRequestedRun } from '../../access/scopes.ts'
import { parseMetadataFilter } from './metadata-filter.ts'
import type {
  ForestQuery,
  Group,
  GroupsQuery,
  ListQuery,
  SearchHits,
  SearchQuery,
  Totals,
} from './read-schemas.ts'

/**
 * Converts the filters of a query, restricted to the caller's run.
 * @throws ProxyError `forbidden`, `invalid_request`
 */
export function toSessionFilter(
  query: Static<typeof ListQuery | typeof GroupsQuery | typeof ForestQuery | typeof SearchQuery>,
  caller: Caller,
): SessionFilter {
  const run = getRequestedRun(caller, query.run)
  const { status, since, label, q, reward_min: rewardMin, reward_max: rewardMax, inexact, failed } = query
  return {
    metadata: parseMetadataFilter(query),
    idPrefix: run === undefined ? undefined : getRunIdPrefix(run),
    status,
    sinceMs: since === undefined ? undefined : since * 1_000,
    label,
    text: q,
    rewardMin,
    rewardMax,
    inexact,
    failed,
  }
}

export function totalsToWire({ rewards, sampledTokens, ...counts }: SessionTotals): Static<typeof Totals> {
  return { ...counts, sampled_tokens: sampledTokens, rewards }
}

export function groupToWire(group: SessionGroup): Static<typeof Group> {
  const { rewards, components, sampledTokens, createdAtMs, passed, ...counts } = group
  return {
    ...counts,
    sampled_tokens: sampledTokens,
    rewards,
    ...(passed !== null && { passed }),
    zero_variance: rewards.count > 1 && rewards.std === 0,
    created_at: createdAtMs / 1000,
    reward_components: components,
  }
}

export function hitsToWire({ hits, nextCursor }: SearchPage): Static<typeof SearchHits> {
  return {
    hits: hits.map(({ session, turnId, index, startedAtMs, foundIn, before, match, after }) => ({
      session_id: session.sessionId,
      status: session.status,
      reward: session.reward?.reward ?? null,
      turn_id: turnId,
      index,
      started_at: startedAtMs / 1_000,
      found_in: foundIn,
      ...{ before, match, after },
    })),
    next_cursor: nextCursor ?? null,
  }
}
