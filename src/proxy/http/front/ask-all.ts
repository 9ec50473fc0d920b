/** One answer out of those of all nodes: what the ones that are there say, and which are away. */
import type { FastifyReply } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import type { NodeAnswer, NodeAway, NodeReply } from './nodes.ts'

// biome-ignore lint/suspicious/noExplicitAny: what nodes of this very version answer
export type Body = any

interface MergeOptions {
  /** An order that not all nodes have got is an error. */
  needsAll?: boolean
}

/**
 * Answers with an object, and `away` in it where nodes are: their names and why.
 * @throws ProxyError `node_away` if all are away, or one that is needed
 */
export async function answerAll(
  reply: FastifyReply,
  answers: readonly NodeAnswer[],
  merge: (bodies: Body[]) => object,
  { needsAll = false }: MergeOptions = {},
): Promise<unknown> {
  const sorted = sort(answers, needsAll)
  if ('refusal' in sorted) return refuse(reply, sorted.refusal)
  const { bodies, away } = sorted
  return naming(reply, away).send(withAway(merge(bodies), away))
}

/** Answers with an array, which has no place for the nodes that are away: a header names them. */
export async function answerList(
  reply: FastifyReply,
  answers: readonly NodeAnswer[],
  merge: (lists: unknown[][], nodes: readonly string[]) => unknown[],
): Promise<unknown> {
  const sorted = sort(answers, false)
  if ('refusal' in sorted) return refuse(reply, sorted.refusal)
  return naming(reply, sorted.away).send(merge(sorted.bodies, sorted.nodes))
}

/** Answers with Prometheus' text, in which each node is up or not. */
export async function answerText(
  reply: FastifyReply,
  answers: readonly NodeAnswer[],
  merge: (texts: NodeReply[]) => string,
): Promise<unknown> {
  const up = answers.map((answer) => `llm_proxy_node_up{node="${answer.node}"} ${isUp(answer) ? 1 : 0}\n`)
  const about = '# HELP llm_proxy_node_up Whether the node answers\n# TYPE llm_proxy_node_up gauge\n'
  const refusal = answers.filter(isReply).find(({ status }) => status >= 400 && status < 500)
  if (refusal) return refuse(reply, refusal)
  const texts = answers.filter(isUp)
  return naming(reply, awayOf(answers))
    .type('text/plain; version=0.0.4; charset=utf-8')
    .send(`${merge(texts)}${about}${up.join('')}`)
}

/** An object that says which nodes did not help to make it. */
export function withAway(body: object, away: readonly NodeAway[]): object {
  return away.length === 0 ? body : { ...body, partial: true, away }
}

export function naming(reply: FastifyReply, away: readonly NodeAway[]): FastifyReply {
  return away.length === 0 ? reply : reply.header('x-llm-proxy-away', away.map(({ node }) => node).join(', '))
}

/** A refusal that all would give (no key, a wrong parameter) is the answer. */
function sort(
  answers: readonly NodeAnswer[],
  needsAll: boolean,
): { bodies: Body[]; nodes: string[]; away: NodeAway[] } | { refusal: NodeReply } {
  const refusal = answers.filter(isReply).find(({ status }) => status >= 400 && status < 500)
  if (refusal) return { refusal }
  const up = answers.filter(isUp)
  const away = awayOf(answers)
  if (up.length === 0 || (needsAll && away.length > 0)) {
    const done = needsAll && up.length > 0 ? `; done on ${up.map(({ node }) => node).join(', ')}` : ''
    throw nodesAway(away, done)
  }
  return { bodies: up.map(({ text }) => JSON.parse(text)), nodes: up.map(({ node }) => node), away }
}

function awayOf(answers: readonly NodeAnswer[]): NodeAway[] {
  return answers
    .filter((answer) => !isUp(answer))
    .map((answer) => ({ node: answer.node, error: isReply(answer) ? `HTTP ${answer.status}` : answer.error }))
}

function isReply(answer: NodeAnswer): answer is NodeReply {
  return 'status' in answer
}

function isUp(answer: NodeAnswer): answer is NodeReply {
  return isReply(answer) && answer.status < 400
}

/** @param done what was done all the same */
export function nodesAway(away: readonly NodeAway[], done = ''): ProxyError {
  const names = away.map(({ node, error }) => `${node} (${error})`).join(', ')
  return new ProxyError('node_away', `Nodes that do not answer: ${names}${done}`)
}

/** What a node refuses for all is the answer. */
export function refuse(
  reply: FastifyReply,
  { status, text }: Pick<NodeReply, 'status' | 'text'>,
): FastifyReply {
  return reply.code(status).type('application/json; charset=utf-8').send(text)
}
