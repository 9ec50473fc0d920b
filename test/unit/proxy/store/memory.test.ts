import t from 'tap'
import { consumerConformance } from '../../../conformance/consumers.ts'
import { turnStoreConformance } from '../../../conformance/turn-store.ts'
import { MemoryTurnStore } from '../../../helpers/memory-store.ts'

turnStoreConformance(t, async () => new MemoryTurnStore())
consumerConformance(t, async () => new MemoryTurnStore())
