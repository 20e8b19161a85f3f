from __future__ import annotations

from triolet.frontend.request_state import NO_ORDERS, CoreOrders
from triolet.request import Request


def request(request_id: int) -> Request:
    return Request(request_id=request_id, prompt_token_ids=(1,), max_tokens=1, seed=0)


def test_orders_are_joined_in_their_order() -> None:
    first, second = CoreOrders((1,), (request(2),)), CoreOrders((3,), (request(4),))
    assert first.joined(second) == CoreOrders((1, 3), (request(2), request(4)))


def test_joining_none_makes_nothing_new() -> None:
    orders = CoreOrders((1,))
    assert orders.joined(NO_ORDERS) is orders
    assert NO_ORDERS.joined(orders) is orders
    assert NO_ORDERS.joined(NO_ORDERS) is NO_ORDERS
