/**
 * The products that the program includes besides the proxy and the worker. A reduced program omits some of these lines.
 */
export * as embedded from './embedded/open-embedded-engine.ts'
export * as inspector from './inspector/routes/routes.ts'
export * as postgres from './proxy/store/postgres/open.ts'
export * as rollouts from './rollout/server/open-rollouts.ts'
